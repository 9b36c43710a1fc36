"""Leave-one-out on a budget: what is exact, what it costs, and what its error bars promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils.removal import budgeted
from lrputils.removal.budgeted import (
    Verified,
    bar_factor,
    budgeted_loo,
    half_widths,
    most_relevant,
    plan,
    verified_loo,
)
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import mask_gradient
from tests import tiny


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_the_whole_budget_is_leave_one_out(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    exact = leave_one_out(model, inputs)
    torch.testing.assert_close(budgeted_loo(model, inputs, budget=1.0), exact)


def test_exact_scores_are_those_that_rank_first_and_the_rest_is_the_estimate():
    model, inputs = tiny.build("bert"), tiny.texts((9, 6, 4))
    loo = leave_one_out(model, inputs)
    found = verified_loo(model, inputs, budget=0.8)
    estimate = mask_gradient(model, inputs)
    content = inputs["special_tokens_mask"] == 0
    for row, length in enumerate((9, 6, 4)):
        count = max(0, int(0.8 * length) - 3)
        order = estimate[row].abs().masked_fill(~content[row], -1).argsort(descending=True)
        first = order[:count]
        assert sorted(found.exact[row].nonzero().flatten().tolist()) == sorted(first.tolist())
        torch.testing.assert_close(found.scores[row, first], loo[row, first])
        rest = ~found.exact[row]
        torch.testing.assert_close(found.scores[row, rest], estimate[row, rest])
    assert not found.scores[~inputs["attention_mask"].bool()].any()


def test_where_all_tokens_count_special_ones_are_exact_first():
    model, inputs = tiny.build("bert"), tiny.texts((9, 6))
    found = verified_loo(model, inputs, budget=0.7, counted="all")
    assert found.exact[0].nonzero().flatten()[[0, -1]].tolist() == [0, 8]
    assert found.exact.sum(1).tolist() == [3, 1]
    with pytest.raises(ValueError, match="counted='words' is not one of"):
        verified_loo(model, inputs, counted="words")


def test_the_target_is_that_of_the_estimate_and_of_the_removal():
    model, inputs = tiny.build("roberta"), tiny.texts((8, 5))
    exact = leave_one_out(model, inputs, target=[1, 0])
    found = verified_loo(model, inputs, target=[1, 0], budget=0.9)
    assert found.exact.any()
    torch.testing.assert_close(found.scores[found.exact], exact[found.exact])


def test_special_tokens_are_verified_last():
    estimate = torch.tensor([[9.0, 1.0, 2.0, 8.0, 0.0]])
    content = torch.tensor([[False, True, True, False, False]])
    valid = torch.tensor([[True, True, True, True, False]])
    for count, wanted in ((1, [2]), (2, [1, 2]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])):
        chosen = most_relevant(estimate, content, valid, [count])
        assert chosen[0].nonzero().flatten().tolist() == wanted


@pytest.mark.parametrize("tokens", [4, 25, 150, 512])
@pytest.mark.parametrize("budget", [0.05, 0.25, 0.5, 1.0])
def test_a_plan_stays_within_its_budget(tokens, budget):
    options, exact = plan(tokens, budget)
    cost = budgeted._BOTH * (1 + options.get("groups", 0))
    assert 0 <= exact <= tokens
    assert not options or tokens > 64
    if budget < 1:
        assert exact == 0 or cost + exact <= budget * tokens
        assert not options or cost <= 0.7 * budget * tokens
    else:
        assert exact == tokens


def test_error_bars_cover_what_they_promise_on_texts_they_have_not_seen():
    generator = torch.Generator().manual_seed(0)

    def texts(count):
        loo = torch.randn(count, 20, generator=generator)
        size = torch.rand(count, 1, generator=generator) + 0.1
        estimate = loo + size * torch.randn(count, 20, generator=generator)
        where = torch.ones(count, 20, dtype=torch.bool)
        exact = most_relevant(estimate, where, where, [4] * count)
        return Verified(torch.where(exact, loo, estimate), estimate, exact), loo, where

    for level in (0.5, 0.9):
        found, loo, where = texts(300)
        factor = bar_factor(found, loo, where, level)
        fresh, truth, where = texts(300)
        inside = (fresh.scores - truth).abs() <= half_widths(fresh, where, factor)
        assert inside[fresh.exact].all()
        covered = inside[~fresh.exact].float().mean()
        assert float(covered) == pytest.approx(level, abs=0.03)
        assert not half_widths(fresh, where, factor)[fresh.exact].any()


def test_too_few_tokens_for_a_quantile_are_refused():
    one = torch.ones(1, 2)
    found = Verified(one, one, torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="calibrate on more texts"):
        bar_factor(found, one, one.bool(), 0.9)
    with pytest.raises(ValueError, match="not between 0 and 1"):
        bar_factor(found, one, one.bool(), 1.0)


@pytest.mark.parametrize("budget", [0, -0.1, 1.5])
def test_a_budget_that_is_no_share_is_refused(budget):
    with pytest.raises(ValueError, match="no share of leave-one-out's passes"):
        lrp.attribute(tiny.build("bert"), tiny.texts(), "budgeted-loo", budget=budget)


def test_texts_of_several_plans_share_a_batch(monkeypatch):
    def half(tokens, budget):
        return {"groups": 1 + tokens % 2, "gate": 0.5}, 1

    monkeypatch.setattr(budgeted, "plan", half)
    model, inputs = tiny.build("bert"), tiny.texts((7, 4, 5))
    together = budgeted_loo(model, inputs).numpy()
    for row, length in enumerate((7, 4, 5)):
        alone = budgeted_loo(model, tiny.row(inputs, row)).numpy()
        assert np.allclose(together[row, :length], alone[0], rtol=1e-9, atol=1e-9)
