"""The figures of the specification grid show the numbers that they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from experiments import specifications as draw
from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS


@pytest.fixture
def table():
    levels = {
        "model": ["6 × 384", "12 × 768"],
        "read-out": ["word", "sum", "post-norm"],
        "normalisation": ["raw", "sum to one"],
        "removal": ["attention-mask"],
    }
    index = pd.MultiIndex.from_product(levels.values(), names=list(levels))
    value = np.random.default_rng(0).permutation(np.linspace(-0.3, 0.5, len(index)))
    frame = pd.DataFrame({"value": value, "low": value - 0.1, "high": value + 0.1}, index)
    return frame.sort_values("value")


def _points(axes, marker):
    return {
        (x, y) for line in axes.lines if line.get_marker() == marker for x, y in line.get_xydata()
    }


def test_the_curve_is_sorted_and_marks_stand_where_their_rows_do(table):
    marked = table.iloc[[2, 7]]
    above, below = draw.specification_curve(table, {"the paper's": marked}, bins=4).axes
    curve = next(line for line in above.lines if len(line.get_ydata()) == len(table))
    assert list(curve.get_ydata()) == sorted(table.value)
    assert _points(above, "D") == {(2.5, table.value.iloc[2]), (7.5, table.value.iloc[7])}
    names = [label.get_text() for label in below.get_yticklabels()]
    assert names == ["12 × 768", "6 × 384", "words", "sum", "LayerNorm", "raw", "sum to one"]
    assert "removal" not in [text.get_text() for text in below.texts]
    assert not plt.get_fignums()


def test_no_side_and_no_mark_has_the_colour_of_a_method(table):
    methods = {COLORS.get(m.colour, m.colour) for m in METHODS.values()} - {COLORS["ink"]}
    above, _ = draw.specification_curve(table, {"a": table.iloc[:1], "b": table.iloc[-1:]}).axes
    drawn = {line.get_label(): line.get_color() for line in above.lines}
    assert {"interval above zero", "interval below zero", "a", "b"} <= drawn.keys()
    assert not methods & {*drawn.values()}
    assert len({*drawn.values()} - {COLORS["ink"], COLORS["muted"]}) >= 3


@pytest.mark.parametrize("place", range(12))
def test_no_label_lies_on_the_line_at_zero(table, place):
    figure = draw.specification_curve(table, {"a": table.iloc[[place]]})
    figure.draw_without_rendering()
    above = figure.axes[0]
    (label,) = above.texts
    box, (_, zero) = label.get_window_extent(), above.transData.transform((0, 0))
    assert not box.y0 < zero < box.y1


def test_a_choice_is_dark_where_it_is_made_more_often(table):
    _, below = draw.specification_curve(table, bins=2).axes
    shades = dict(zip(["12 × 768", "6 × 384"], below.collections, strict=False))
    for model, mesh in shades.items():
        own = table.index.get_level_values("model") == model
        expected = [own[:6].mean() / own.mean(), own[6:].mean() / own.mean()]
        assert mesh.get_array().ravel().tolist() == pytest.approx(expected)


def test_shares_are_bars_that_add_up_under_their_group(table):
    index = pd.MultiIndex.from_product([["A − B", "B − C"], ["raw", "sum to one"]])
    shares = {"below": [10.0, 0, 50, 5], "undecided": 30.0, "above zero": [60.0, 70, 20, 65]}
    shares = pd.DataFrame(shares, index)
    figure = draw.outcome_shares({"all": shares, "own": shares}, title="Shares")
    bars = [[bar.get_width() for bar in side] for side in figure.axes[1].containers]
    assert bars == [list(shares[side]) for side in shares]
    starts = [bar.get_x() for bar in figure.axes[0].containers[2]]
    assert starts == list(shares.below + shares.undecided)
    assert [text.get_text() for text in figure.axes[0].texts] == ["A − B", "B − C"]
    thin = draw.specification_curve(table, others={"mine": -table.value}, bins=2).axes[0]
    line = next(line for line in thin.lines if line.get_label() == "mine")
    assert list(line.get_ydata()) == sorted(-table.value)
