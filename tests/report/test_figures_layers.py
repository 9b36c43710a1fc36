from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lrputils.paper import ablations as published
from lrputils.report.figures import layers as draw
from lrputils.study.softmax_errors import RAW, SUM_TO_ONE
from lrputils.study.variants import layer_sets


def estimates(index, seed=0):
    means = np.random.default_rng(seed).uniform(-0.5, 0.9, len(index))
    return pd.DataFrame(
        {"value": means, "low": means - 0.1, "high": means + 0.1}, index=pd.Index(index)
    )


def curves(layers, seed=0):
    names = [("attnlrp", 0), ("cp-lrp", 0), *layer_sets(layers)]
    return {RAW: estimates(names, seed), SUM_TO_ONE: estimates(names, seed + 1)}


def line(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


class TestAblations:
    @pytest.mark.parametrize("layers", [1, 2, 12, 24])
    def test_each_family_is_drawn_against_its_layers(self, layers):
        run = curves(layers)
        figure = draw.ablations({"this run": run})
        for axes, family in zip(figure.axes, ("front", "back", "single"), strict=True):
            for convention, summary in run.items():
                drawn = line(axes, convention)
                assert drawn.get_xdata().tolist() == [*range(1, layers + 1)]
                expected = [summary.value[family, k] for k in range(1, layers + 1)]
                assert drawn.get_ydata().tolist() == expected
            dotted = [x.get_ydata()[0] for x in axes.lines if x.get_linestyle() == ":"]
            assert dotted == [summary.value["attnlrp", 0] for summary in run.values()]

    def test_the_papers_curves_stand_at_the_same_depth(self):
        printed = published("imdb").r
        twelve = draw.ablations({"a": curves(12)}, {"a": printed}).axes
        for axes in twelve:
            np.testing.assert_allclose(line(axes, "the paper").get_xdata(), np.arange(1, 13))
        front, back, single = draw.ablations({"a": curves(6)}, {"a": printed}).axes
        # Half of the layers, from the front: 6 of 12, 3 of 6.
        at = dict(line(front, "the paper").get_xydata())
        assert at[3] == printed["front", 6]
        # The upper half: from layer 7 of 12, from layer 4 of 6.
        at = dict(line(back, "the paper").get_xydata())
        assert at[4] == printed["back", 7]
        # Layers 1 and 2 of 12 share the place of layer 1 of 6.
        assert line(single, "the paper").get_xdata()[:2].mean() == pytest.approx(1)

    def test_runs_of_different_depth_stand_side_by_side(self):
        figure = draw.ablations({"one": curves(6), "two": curves(12)}, {"two": published("sst").r})
        assert len(figure.axes) == 6
        assert figure.axes[0].get_title(loc="left").startswith("one\n")
        assert len(line(figure.axes[1], RAW).get_xdata()) == 12
        assert "the paper" not in [x.get_label() for x in figure.axes[0].lines]
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert legend == [RAW, SUM_TO_ONE, "the paper"]

    def test_a_table_without_ablations_is_refused(self):
        with pytest.raises(ValueError, match="no ablations"):
            draw.ablations({"a": {RAW: estimates([("attnlrp", 0), ("cp-lrp", 0)])}})


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


class TestHalves:
    def test_every_readout_of_every_run_has_its_row_and_the_paper_its_place(self):
        rows = [(at, rule) for at in ("word", "sum") for rule in (RAW, SUM_TO_ONE, "another")]
        runs = {"one": estimates(rows), "two": estimates(rows[:3], seed=1)}
        figure = draw.halves(runs, {"one": 0.3, "two": -0.2}, title="t", label="difference")
        (axes,) = figure.axes
        names = [text.get_text() for text in axes.get_yticklabels()]
        assert names == ["one", "word", "sum", "two", "word"]
        np.testing.assert_array_equal(line(axes, "the paper").get_xydata(), [[0.3, 0], [-0.2, 3]])
        raw = line(axes, RAW)
        assert raw.get_ydata() == pytest.approx([0.85, 1.85, 3.85])
        values = [runs["one"].value["word", RAW], runs["one"].value["sum", RAW]]
        assert raw.get_xdata().tolist() == [*values, runs["two"].value["word", RAW]]
        assert len(line(axes, SUM_TO_ONE).get_xdata()) == 3
