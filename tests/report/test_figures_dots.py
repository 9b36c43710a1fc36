"""Dots stand at the means, lines reach as far as the intervals, each method in its colour."""

import numpy as np
import pandas as pd

from lrputils.report.figures.dots import agreement_of_forms, dots
from lrputils.report.figures.style import COLORS


def test_dots_stand_where_the_values_are():
    index = pd.MultiIndex.from_product([["LOO", "Shapley values"], ["AttnLRP", "CP-LRP"]])
    value = pd.Series([0.1, 0.2, 0.3, 0.4], index)
    table = pd.DataFrame({"value": value, "low": value - 0.05, "high": value + 0.1})
    figure = dots(
        {"a": table, "b": table.loc[["LOO"]]}, xlabel="r", title="A message", lines={"b": 0.5}
    )
    first, second = figure.axes
    by_label = {line.get_label(): line for line in first.lines}
    assert list(by_label["Shapley values"].get_xdata()) == [0.3, 0.4]
    assert by_label["LOO"].get_color() == COLORS["ink"]
    (spans, _) = first.collections
    assert list(spans.get_segments()[0][:, 0]) == [0.05, 0.2]
    assert [text.get_text() for text in first.get_yticklabels()] == ["AttnLRP", "CP-LRP"]
    assert second.lines[0].get_xdata()[0] == 0.5


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
