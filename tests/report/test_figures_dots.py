"""Dots stand at the means, lines reach as far as the intervals, each method in its colour."""

import pandas as pd

from lrputils.report.figures.dots import dots
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
