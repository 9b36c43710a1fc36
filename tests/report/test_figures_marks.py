"""Marks stand at the means, lines and bands reach as far as the intervals, each in its colour."""

from itertools import pairwise

import IPython.display
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb

from experiments import frame
from lrputils.attribution import METHODS
from lrputils.report.display import TABLE
from lrputils.report.figures.marks import dots, lines
from lrputils.report.figures.style import COLORS, LOOKS, looks


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


@pytest.mark.parametrize(
    "ends", [(-0.55, 1.0), (0.0, 0.155), (0.45, 1.0), (-0.27, 0.11), (12, 980)]
)
def test_the_labels_below_dots_stay_apart(ends):
    rows = ["a long name of a convention", "Integrated Gradients"]
    figure = dots({"a": {"one": pd.Series(ends, rows)}}, xlabel="r", title="t")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in axes.get_xticklabels()]
    seen = [box for box in boxes if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
    assert len(seen) >= 2
    assert all(right.x0 - left.x1 > 10 for left, right in pairwise(seen))


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
    assert (ours.get_color(), ours.get_linestyle()) == (COLORS["indigo"], "-")
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


@pytest.mark.parametrize("mark", [dots, lines])
def test_a_series_without_a_name_is_drawn(mark):
    """Indexed by ("", row), as one method or one read-out of a larger table is."""
    rows = pd.MultiIndex.from_product([[""], [1, 2]])
    only = pd.DataFrame({"value": [0.1, 0.4], "low": [0.0, 0.3], "high": [0.2, 0.5]}, rows)
    (axes,) = mark({"a run": only}, xlabel="r", title="t").axes
    drawn = axes.lines[-1].get_xydata()
    assert sorted(map(float, drawn[:, 0 if mark is dots else 1])) == [0.1, 0.4]


@pytest.mark.parametrize("mark", [dots, lines])
@pytest.mark.parametrize("nothing", [float("nan"), float("inf")])
def test_a_series_of_which_nothing_would_be_seen_is_refused(mark, nothing):
    panel = {"LOO": pd.Series([0.1], [1]), "AttnLRP": pd.Series([nothing], [1])}
    with pytest.raises(ValueError, match="series 'AttnLRP' can be drawn in panel 'a run'"):
        mark({"a run": panel}, xlabel="r", title="t")


def test_every_method_and_model_has_a_look_and_no_two_are_alike():
    labels = [m.label for m in METHODS.values()] + list({model for model, _ in frame.RUNS.values()})
    found = looks([*labels, "the paper", frame.THIS_RUN])
    assert len({look.colour for look in found.values()}) == len(found)
    assert len({found[m.label].shape for m in METHODS.values()}) == len(METHODS)
    assert {*found} <= {m.label for m in METHODS.values() if m.colour} | {*LOOKS}


def test_every_look_is_seen_on_white():
    def light(colour):
        return np.array(
            [v / 12.92 if v < 0.04 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
        )

    for name in LOOKS:
        luminance = light(looks([name])[name].colour) @ [0.2126, 0.7152, 0.0722]
        assert 1.05 / (luminance + 0.05) >= 3, name


def test_others_take_what_is_left_and_keep_it_in_every_panel():
    panels = {
        "a": {"AttnLRP": pd.Series([0.1], ["x"]), "LOO": pd.Series([0.1], ["x"])},
        "b": {"one": pd.Series([0.2], ["x"]), "two": pd.Series([0.2], ["x"])},
        "c": {"two": pd.Series([0.3], ["x"])},
    }
    first, second, third = dots(panels, xlabel="r", title="t").axes
    colour = {
        line.get_label(): to_hex(line.get_color()) for a in (first, second) for line in a.lines
    }
    assert len({*colour.values()}) == 4
    assert to_hex(third.lines[0].get_color()) == colour["two"]
