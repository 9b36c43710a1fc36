"""The figure of attention's forms draws what the table holds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lrputils.report.figures.forms import agreement_of_forms


def test_a_dot_a_form_and_run_without_the_standard_one():
    table = pd.DataFrame(
        {"r": [1.0, 0.9, 0.5], "r low": [1.0, 0.8, 0.4], "r high": [1.0, 0.95, 0.6]},
        index=["standard", "first", "second"],
    )
    figure = agreement_of_forms({"one": table, "two": table})
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    drawn = [line for line in axes.lines if line.get_label() in ("one", "two")]
    for line in drawn:
        np.testing.assert_allclose(line.get_xdata(), [0.9, 0.5])
    assert len(drawn) == 2
