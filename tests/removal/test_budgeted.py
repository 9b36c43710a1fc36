"""Leave-one-out on a budget: what is exact, and what it costs."""

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils.removal import budgeted
from lrputils.removal.budgeted import budgeted_loo, plan
from lrputils.removal.mask_gradient import mask_gradient
from tests import tiny


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_the_whole_budget_is_leave_one_out(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    exact = lrp.leave_one_out(model, inputs)
    torch.testing.assert_close(budgeted_loo(model, inputs, budget=1.0), exact)


@pytest.mark.parametrize(("counted", "budget"), [("content", 0.8), ("all", 0.7)])
def test_exact_scores_are_those_that_rank_first_and_the_rest_is_the_estimate(counted, budget):
    """Special tokens rank last, or first where they count."""
    model, inputs = tiny.build("roberta"), tiny.texts((9, 6, 4))
    target = [1, 0, 1]
    loo = lrp.leave_one_out(model, inputs, target=target)
    found = budgeted_loo(model, inputs, target=target, budget=budget, counted=counted)
    expected = mask_gradient(model, inputs, target=target)
    size, last = expected.abs(), -1 if counted == "content" else torch.inf
    size = size.masked_fill(inputs["special_tokens_mask"].bool(), last)
    for row, length in enumerate((9, 6, 4)):
        count = max(0, int(budget * length) - 3)
        first = size[row, :length].argsort(descending=True, stable=True)[:count]
        expected[row, first] = loo[row, first]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("tokens", [4, 25, 150, 512])
@pytest.mark.parametrize("budget", [0.05, 0.25, 0.5, 1.0])
def test_a_plan_stays_within_its_budget(tokens, budget):
    options, exact = plan(tokens, budget)
    cost = budgeted.BOTH * (1 + options.get("groups", 0))
    assert 0 <= exact <= tokens
    assert not options or tokens > 64
    if budget < 1:
        assert exact == 0 or cost + exact <= budget * tokens
        assert not options or cost <= 0.7 * budget * tokens
    else:
        assert exact == tokens


def test_passes_by_number_are_one_open_pass_and_exact_ones():
    assert [plan(tokens, 9) for tokens in (4, 25, 512)] == [({}, 4), ({}, 6), ({}, 6)]


def test_where_all_is_exact_nothing_is_estimated(monkeypatch):
    model, inputs = tiny.build("bert"), tiny.texts((7, 4, 5))
    monkeypatch.setattr(budgeted, "mask_gradient", None)
    found = budgeted_loo(model, inputs, budget=9)
    torch.testing.assert_close(found, lrp.leave_one_out(model, inputs))
    assert [budgeted.price(tokens, budget=9) for tokens in (7, 25)] == [7, 9]


def test_texts_of_several_plans_share_a_batch(monkeypatch):
    def half(tokens, budget):
        return {"groups": 1 + tokens % 2, "gate": 0.5}, 1

    monkeypatch.setattr(budgeted, "plan", half)
    model, inputs = tiny.build("bert"), tiny.texts((7, 4, 5))
    together = budgeted_loo(model, inputs).numpy()
    for row, length in enumerate((7, 4, 5)):
        alone = budgeted_loo(model, tiny.row(inputs, row)).numpy()
        assert np.allclose(together[row, :length], alone[0], rtol=1e-9, atol=1e-9)
