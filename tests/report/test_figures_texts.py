from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lrputils import stats
from lrputils.report.figures.texts import changes_by_control, correlation_by_method
from lrputils.report.tables import side_by_side
from lrputils.study.specifications import EVERY, NO_CLS

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
    assert np.allclose(means(axes, "o"), [0.4, 0.225])


def means(axes, marker):
    marked = [line.get_xdata() for line in axes.lines if line.get_marker() == marker]
    return [float(x[0]) for x in marked if len(x)]


def test_recorded_runs_have_their_means_and_the_first_one_its_shape():
    first = pd.DataFrame({"own": [0.1, 0.2, np.nan, 0.6, 0.7], "other": [1.0] * 5})
    axes = drawn(recorded={"six": first, "twelve": PER_TEXT}).axes[0]
    shapes = [c for c in axes.collections if c.get_paths() and len(c.get_paths()[0]) > 100]
    assert len(shapes) == 1  # "attnlrp" was not recorded first, and "other" is not drawn
    width, height = np.ptp(shapes[0].get_paths()[0].vertices, axis=0)
    assert (width, height) == pytest.approx((2.0, 0.8))
    assert means(axes, "D") == pytest.approx([0.4])
    assert means(axes, "s") == pytest.approx([0.4, 0.225])
    named = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert named == ["this run", "six", "twelve"]


@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5, 0.5], [0.1, 0.2, np.nan, np.nan]])
def test_recorded_values_without_a_distribution_have_the_mean_alone(values):
    axes = drawn(recorded={"run": pd.DataFrame({"own": values})}).axes[0]
    assert not [c for c in axes.collections if c.get_paths() and len(c.get_paths()[0]) > 100]
    assert means(axes, "D") == pytest.approx([np.nanmean(values)])


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


def test_a_figure_is_not_left_open_to_be_shown_twice():
    drawn()
    assert plt.get_fignums() == []
