"""A ratio is of equal work: every other side gives the same scores."""

from __future__ import annotations

import pytest
import torch

from experiments.bench import contests, sides
from experiments.bench import timing as bench
from experiments.bench.groups import GROUPS
from experiments.bench.timing import Bench
from tests import languages

WORDS = ["a film that is never dull", "long and loud"]


def ones(size: float = 1.0):
    return lambda: torch.full((3,), size)


@pytest.fixture(scope="module")
def small():
    return Bench.of(bench.untrained(2, 64), sentences=2, longest=12, repeats=2)


class TestContest:
    def test_a_ratio_comes_with_its_extremes_and_the_outputs_difference(self, small):
        ways = {"ours": ones(), "a": ones(1.001), "b": ones()}
        ours, other, _ = small.contest("same", ways, tolerance=0.01)
        assert ours["ratio"] == ours["low"] == ours["high"] == 1
        assert other["low"] <= other["ratio"] <= other["high"]
        assert other["difference"] == pytest.approx(0.001, rel=0.01)
        assert other["side"] == "a"

    @pytest.mark.parametrize("wrong", [2.0, float("nan")])
    def test_faster_but_wrong_is_no_result(self, small, wrong):
        with pytest.raises(ArithmeticError, match="work: other differs"):
            small.contest("work", {"ours": ones(), "other": ones(wrong)}, tolerance=0.01)


class TestSides:
    def test_the_plain_loop_does_the_same_work(self, placeholder):
        inputs = placeholder.encode(WORDS)
        ours = bench.scores(placeholder, inputs)
        assert torch.allclose(sides.masked_loo(placeholder, inputs), ours, atol=1e-5)
        assert torch.allclose(bench.one_by_one(placeholder, inputs, "loo"), ours, atol=1e-5)

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
    @pytest.mark.parametrize("name", ["loo-sentences", "loo-review", "curves"])
    def test_a_contest_has_ours_and_another_side_that_agrees(self, small, name):
        rows = GROUPS[name][0](small)
        assert [row["side"] for row in rows].count(bench.OURS) == len({r["what"] for r in rows})
        assert len(rows) > 1

    def test_without_a_library_its_sides_are_left_out(self, small, monkeypatch):
        monkeypatch.setattr(sides, "installed", lambda library: False)
        rows = contests.loo(small, "sentences")
        assert [row["side"] for row in rows] == [bench.OURS, "plain loop"]

    def test_the_time_has_all_its_parts(self, small):
        rows = bench.time_goes(small)
        assert {row["part"] for row in rows} == {*bench.KINDS, "Python"}
        assert all(row["seconds"] >= 0 for row in rows)

    def test_one_thing_varies_at_a_time(self, small):
        varied = {"tokens": (4, 999), "layers": (1,), "width": (128,), "tokens a batch": (4, 64)}
        rows = bench.model(small, varied, middle=4)
        names = [row["varied"] for row in rows]
        assert names == ["tokens", "layers", "width", "tokens a batch", "tokens a batch"]
        assert {row["tokens"] for row in rows} == {4}  # no review has 999
        assert all(row["seconds"] > 0 < row["rate"] for row in rows)

    def test_methods_are_timed_on_both_kinds_of_texts(self, small):
        rows = bench.methods(small)
        assert len({(row["texts"], row["method"]) for row in rows}) == len(rows) == 10
        assert rows[-1]["texts"] == "review of 12 tokens"


def test_a_random_model_is_the_same_each_time_and_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = bench.untrained(1, 64)
    assert torch.rand(1) == expected
    assert first.identity == bench.untrained(1, 64).identity


PROMPTS = {"sentence": (40, 4, 6), "word": (12, 2, 3)}


class TestAnswers:
    def test_the_plain_side_agrees_and_the_bound_counts_what_runs(self, small, monkeypatch):
        monkeypatch.setattr(sides, "installed", lambda library: False)
        rows = contests.answers(small, PROMPTS)
        assert [row["side"] for row in rows].count("plain batches") == 2
        other = next(row for row in rows if row["side"] == "plain batches")
        layers, head = 3 * (2 * 576 * 768 + 3 * 576 * 1536 + 2 * 576), 4915 * 576
        # Four sentences of ten tokens: behind each stand the others and the answer.
        least = layers * (46 + 36 + 26 + 16 + 6) + head * 6 * 5
        assert other["bound"] == pytest.approx((layers + head) * 46 * 5 / least)
        assert other["rate"] > 0
        of_a_model = contests.answers(Bench(languages.load(), {}, repeats=1), PROMPTS)
        assert [row["side"] for row in of_a_model] == [bench.OURS, "plain batches"]

    def test_captum_in_one_pass_a_unit(self, small):
        pytest.importorskip("captum")
        rows = contests.answers(small, PROMPTS)
        assert sum("captum" in row["side"] for row in rows) == 2

    def test_the_surrogate_finds_what_is_linear(self):
        """With more passes than units and a linear f, least squares is exact."""
        lm = bench.reader(1)
        text = lm.encode("w0003 w0004. w0005 w0006. w0007", answer=" w0008")
        weights = torch.tensor([1.0, -2.0, 0.5])
        masks = sides.masked_units(text, "sentence")

        def f(_, __):
            return lambda kept: (1 - (kept @ (1 - masks).T) / (1 - masks).sum(1)) @ -weights

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sides, "answered", f)
            found = sides.halved_answer(lm, text, "sentence")
        torch.testing.assert_close(found, weights)
