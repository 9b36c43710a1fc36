from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lrputils.paper import ablations as published
from lrputils.report.figures import layers as draw
from lrputils.study.variants import layer_sets


def estimates(index, seed=0):
    means = np.random.default_rng(seed).uniform(-0.5, 0.9, len(index))
    return pd.DataFrame(
        {"value": means, "low": means - 0.1, "high": means + 0.1}, index=pd.Index(index)
    )


def line(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


class TestAblations:
    def test_models_of_any_depth_and_the_paper_stand_at_the_same_depth(self):
        sets = {"six": layer_sets(6), "twelve": layer_sets(12)}
        table = estimates([(m, *key) for m, found in sets.items() for key in found])
        printed = published("sst").r
        figure = draw.ablations({"r": table, "Δ": table}, [printed, printed], title="t")
        front, _, back, _, single, _ = figure.axes
        for axes, family in ((front, "front"), (back, "back"), (single, "single")):
            for model, layers in (("six", 6), ("twelve", 12)):
                expected = [table.value[model, family, k] for k in range(1, layers + 1)]
                assert line(axes, model).get_ydata().tolist() == expected
        # Half of the layers, from below and from above: 3 and 4 of 6, 6 and 7 of 12.
        for axes, family, three, six in ((front, "front", 3, 6), (back, "back", 4, 7)):
            assert dict(line(axes, "six").get_xydata())[0.5] == table.value["six", family, three]
            assert dict(line(axes, "the paper").get_xydata())[0.5] == printed[family, six]
        alone = line(single, "twelve").get_xdata()
        assert line(single, "six").get_xdata()[0] == pytest.approx(alone[:2].mean())


class TestByLayer:
    def table(self, means):
        means = np.array(means)
        index = range(1, len(means) + 1)
        return pd.DataFrame({"value": means, "low": means - 0.1, "high": means + 0.1}, index=index)

    def test_a_mean_whose_interval_reaches_zero_is_hollow_where_zero_is_the_question(self):
        table = self.table([-0.3, 0.05, 0.3])
        for zero, hollow in ((True, [False, True, False]), (False, [False] * 3)):
            (axes,) = draw.by_layer({"run": table}, title="t", zero=zero).axes
            faces = axes.collections[-1].get_facecolors()
            drawn = [tuple(face) == (1, 1, 1, 1) for face in faces]
            assert drawn == hollow

    def test_runs_of_different_depth_share_a_scale_in_two_columns(self):
        panels = {f"run {k}": self.table([0.1 * k] * k) for k in (6, 2, 12)}
        figure = draw.by_layer(panels, title="t", label="share")
        seen = [axes for axes in figure.axes if axes.get_visible()]
        assert [axes.get_xlim() for axes in seen] == [(0.5, 6.5), (0.5, 2.5), (0.5, 12.5)]
        assert len({axes.get_ylim() for axes in seen}) == 1
        assert [axes.get_title(loc="left") for axes in seen] == list(panels)
        assert [axes.get_ylabel() for axes in seen] == ["share", "", "share"]

    def test_several_series_have_marks_and_a_legend(self):
        series = {"a": self.table([0.1, 0.2]), "b": self.table([0.3, 0.4])}
        figure = draw.by_layer({"run": series, "other": series}, title="t")
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]

    def test_a_figure_is_not_left_open_to_be_shown_twice(self):
        draw.by_layer({"": self.table([0.1])}, title="t")
        assert plt.get_fignums() == []
