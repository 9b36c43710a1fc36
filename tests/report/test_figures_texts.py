from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lrputils import stats
from lrputils.report.figures.texts import correlation_by_method

PER_TEXT = pd.DataFrame({"attnlrp": [0.2, 0.4, np.nan, 0.6], "own": [-0.5, 0.0, 0.5, 0.9]})


def drawn(**options):
    estimates = {name: stats.estimate(PER_TEXT[name]) for name in PER_TEXT}
    summary = stats.table(estimates)
    return correlation_by_method(PER_TEXT, summary, labels={"attnlrp": "AttnLRP"}, **options)


def test_each_text_is_a_dot_and_each_mean_has_its_interval():
    axes = drawn().axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["AttnLRP", "own"]
    dots = axes.collections[0].get_offsets()
    assert np.isfinite(dots[:, 0].filled(np.nan)).sum() == 3
    means = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert np.allclose(means, [0.4, 0.225])


def test_published_means_are_diamonds_where_there_are_some():
    diamonds = [x for x in drawn(published={"own": 0.1}).axes[0].lines if x.get_marker() == "D"]
    assert [line.get_xdata()[0] for line in diamonds] == [0.1]


def test_a_recorded_run_is_a_shape_behind_the_dots_with_its_mean_as_a_stroke():
    recorded = pd.DataFrame({"own": [0.1, 0.2, np.nan, 0.6, 0.7], "other": [1.0] * 5})
    axes = drawn(recorded=recorded).axes[0]
    shapes = [c for c in axes.collections if c.get_paths() and len(c.get_paths()[0]) > 100]
    assert len(shapes) == 1  # "attnlrp" was not recorded, and "other" is not drawn
    top, bottom = np.ptp(shapes[0].get_paths()[0].vertices, axis=0)
    assert (top, bottom) == pytest.approx((2.0, 0.8))
    strokes = [x for x in axes.lines if len(x.get_xdata()) == 2 and x.get_lw() == 1.5]
    assert [line.get_xdata()[0] for line in strokes] == pytest.approx([0.4])


@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, np.nan, np.nan]])
def test_recorded_values_without_a_distribution_have_the_stroke_alone(values):
    axes = drawn(recorded=pd.DataFrame({"own": values})).axes[0]
    assert not [c for c in axes.collections if c.get_paths() and len(c.get_paths()[0]) > 100]
    assert any(x.get_xdata()[0] == pytest.approx(np.nanmean(values)) for x in axes.lines)


def test_a_figure_is_not_left_open_to_be_shown_twice():
    drawn()
    assert plt.get_fignums() == []
