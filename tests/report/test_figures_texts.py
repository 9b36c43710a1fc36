from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lrputils.report.figures.texts import changes_by_control
from lrputils.report.tables import side_by_side
from lrputils.study.specifications import EVERY, NO_CLS


def means(axes, marker):
    marked = [line.get_xdata() for line in axes.lines if line.get_marker() == marker]
    return [float(x[0]) for x in marked if len(x)]


def test_each_control_has_its_change_with_and_without_cls():
    names = ("keys closed", "values whole")
    order = pd.MultiIndex.from_product([(EVERY, NO_CLS), names], names=["tokens", "control"])
    parts = {}
    for shift, place in enumerate(("word", "sum")):
        value = pd.Series([0.1, 0.2, -0.1, -0.2], order) + shift
        parts[place] = pd.DataFrame({"value": value, "low": value - 0.05, "high": value + 0.05})
    table = side_by_side(parts)
    figure = changes_by_control({"one": table, "two": table}, title="What helps")
    for axes in figure.axes:
        assert means(axes, "o") == pytest.approx([0.1, 1.1, 0.2, 1.2])
        assert means(axes, "s") == pytest.approx([-0.1, 0.9, -0.2, 0.8])
    ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert ticks == ["keys closed: word", "sum", "values whole: word", "sum"]
    assert plt.get_fignums() == []  # it is not left open to be shown twice
