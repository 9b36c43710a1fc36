"""A ratio is of equal work: every other side gives the same scores."""

from __future__ import annotations

import pytest
import torch

from lrputils.attribution import attribute
from lrputils.study import bench, sides
from lrputils.study.bench import Bench, Contest, measure

WORDS = ["a film that is never dull", "long and loud"]


def ones(size: float = 1.0):
    return lambda: torch.full((3,), size)


@pytest.fixture(scope="module")
def small():
    return Bench.of(bench.untrained(2, 64), sentences=2, longest=12, repeats=2)


class TestMeasure:
    def test_a_ratio_comes_with_its_extremes_and_the_outputs_difference(self):
        work = Contest("same", {"ours": ones(), "a": ones(1.001), "b": ones()}, tolerance=0.01)
        ours, other, _ = measure(work, repeats=3)
        assert ours["ratio"] == ours["low"] == ours["high"] == 1
        assert other["low"] <= other["ratio"] <= other["high"]
        assert other["difference"] == pytest.approx(0.001, rel=0.01)
        assert other["side"] == "a"

    @pytest.mark.parametrize("wrong", [2.0, float("nan")])
    def test_faster_but_wrong_is_no_result(self, wrong):
        work = Contest("work", {"ours": ones(), "other": ones(wrong)}, tolerance=0.01)
        with pytest.raises(ArithmeticError, match="work: other differs"):
            measure(work)

    def test_work_that_differs_on_purpose_is_not_compared(self):
        _, other = measure(Contest("work", {"ours": ones(), "other": ones(2.0)}), repeats=1)
        assert other["difference"] != other["difference"]


class TestSides:
    def test_the_plain_loop_and_the_plain_gradient_do_the_same_work(self, placeholder):
        inputs = placeholder.encode(WORDS)
        for side, method in ((sides.masked_loo, "loo"), (sides.plain_gradient, "grad-x-input")):
            ours = bench.scores(placeholder, inputs, method)
            assert torch.allclose(side(placeholder, inputs), ours, atol=1e-5)
            assert torch.allclose(bench.one_by_one(placeholder, inputs, method), ours, atol=1e-5)

    @pytest.mark.parametrize("rows", [1, 3])
    def test_captum(self, placeholder, rows):
        pytest.importorskip("captum")
        inputs = placeholder.encode(WORDS)
        ours = bench.scores(placeholder, inputs)
        assert torch.allclose(sides.captum_loo(placeholder, inputs, rows), ours, atol=1e-5)

    def test_explicit_rules(self, placeholder):
        pytest.importorskip("lxt")
        inputs = placeholder.encode(WORDS)
        ours = bench.one_by_one(placeholder, inputs, "attnlrp")
        explicit = sides.explicit_attnlrp(placeholder, inputs)
        assert float((explicit - ours).abs().max() / ours.abs().max()) < 1e-3


class TestGroups:
    @pytest.mark.parametrize("name", ["loo-sentences", "loo-review", "lrp", "curves"])
    def test_a_contest_has_ours_and_another_side_that_agrees(self, small, name):
        rows = bench.GROUPS[name][0](small)
        assert [row["side"] for row in rows].count(bench.OURS) == len({r["what"] for r in rows})
        assert len(rows) > 1

    def test_without_a_library_its_sides_are_left_out(self, small, monkeypatch):
        monkeypatch.setattr(sides, "installed", lambda library: False)
        rows = bench.loo(small, "sentences")
        assert [row["side"] for row in rows] == [bench.OURS, "plain loop"]

    def test_texts_are_named_by_their_lengths(self, small):
        assert small.named("review") == "review of 12 tokens"

    def test_the_time_has_all_its_parts(self, small):
        rows = bench.time_goes(small)
        assert {row["part"] for row in rows} == {*bench.KINDS, bench.PYTHON}
        assert all(row["seconds"] >= 0 and row["naive"] > row["operations"] for row in rows)


def test_ablations_one_by_one_are_the_sweep(placeholder):
    inputs, layers = placeholder.encode(WORDS), [[0], [1, 2]]
    from lrputils.propagation.layerwise import layerwise_bypass

    maps = [attribute(placeholder.model, inputs, "attnlrp", bypass_layers=s) for s in layers]
    swept = layerwise_bypass(placeholder.model, inputs, layers)
    assert torch.allclose(torch.stack(maps), swept, atol=1e-6)
