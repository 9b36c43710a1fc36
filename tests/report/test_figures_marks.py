"""Marks stand at the means, lines and bands reach as far as the intervals, each in its colour."""

import IPython.display
import numpy as np
import pandas as pd

from lrputils.report.display import TABLE
from lrputils.report.figures.marks import dots, lines
from lrputils.report.figures.style import COLORS
from lrputils.runs import frame


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
    assert figure.values.loc[("b", "LOO", "CP-LRP")].to_dict() == {
        "value": 0.2,
        "low": 0.2 - 0.05,
        "high": 0.2 + 0.1,
    }


def table(values):
    means = pd.Series(values, range(1, len(values) + 1))
    return pd.DataFrame({"value": means, "low": means - 0.1, "high": means + 0.1})


def test_lines_have_bands_a_colour_each_and_labels_where_they_differ(monkeypatch):
    series = {frame.MPNET: table([0.1, 0.2]), "the paper": pd.Series([0.3, 0.4], [1, 2])}
    panels = {("a", "r"): series, ("b", "Δ"): series, ("c", "r"): series, ("d", "r"): series}
    figure = lines(panels, xlabel="layer", title="t", zero=True)
    first, *_ = figure.axes
    _, ours, theirs = first.lines
    assert list(ours.get_ydata()) == [0.1, 0.2]
    assert (ours.get_color(), ours.get_linestyle()) == (COLORS["blue"], "-")
    assert (theirs.get_color(), theirs.get_linestyle()) == (COLORS["muted"], "--")
    (band,) = first.collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert np.allclose([ends.min(), ends.max()], [0, 0.3])
    assert [axes.get_ylabel() for axes in figure.axes] == ["r", "Δ", "r", ""]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "layer", "layer"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(series)
    assert figure.values.value["c", "r", frame.MPNET].to_list() == [0.1, 0.2]
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    figure._ipython_display_()
    beside = shown[0][TABLE]
    assert beside["columns"]["value"] == [0.1, 0.2, 0.3, 0.4] * 4
    assert beside["index"][0] == str(("a", "r", frame.MPNET, 1))


def test_runs_of_different_depth_share_a_scale():
    panels = {f"run {k}": table([0.1 * k] * k) for k in (6, 2, 12)}
    figure = lines(panels, xlabel="layer", title="t", ylabel="share")
    seen = [axes for axes in figure.axes if axes.get_visible()]
    assert len({axes.get_ylim() for axes in seen}) == 1
    assert [axes.get_title(loc="left") for axes in seen] == list(panels)
