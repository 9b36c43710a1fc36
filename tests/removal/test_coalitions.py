"""Shapley values and pairs against their definitions, every set of tokens masked by a 4-D mask."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils.removal import coalitions
from tests import reference, tiny


def slow_f(model, inputs, removed, target):
    """The target's logit of one text without the tokens `removed`."""
    return float(reference.without(model, inputs, 0, removed)[target])


def slow_shapley(model, inputs, players, target):
    """φ_i = Σ_S |S|! (n − |S| − 1)! / n! (f(S ∪ i) − f(S)) over all sets S without i."""
    f = {
        frozenset(gone): slow_f(model, inputs, gone, target)
        for size in range(len(players) + 1)
        for gone in combinations(players, size)
    }
    scores = torch.zeros(inputs["input_ids"].shape, dtype=torch.float64)
    for gone, value in f.items():
        for token in gone:
            others = len(players) - len(gone)  # the size of S
            weight = 1 / (len(players) * comb(len(players) - 1, others))
            scores[0, token] += weight * (f[gone - {token}] - value)
    return scores


@pytest.mark.parametrize(("name", "special"), [("bert", 1), ("mpnet", 1), ("bert", 0), ("gpt2", 0)])
def test_all_orders_give_the_enumeration_without_error(name, special):
    """Also where the token that the head reads is removed: it keeps its own query."""
    model, inputs = tiny.build(name), tiny.texts((6, 4) if special else (4, 3))
    inputs["special_tokens_mask"] *= special
    found = lrp.shapley_values(model, inputs, target=1, permutations="all")
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        who = range(special, length - special)
        expected = slow_shapley(model, tiny.row(inputs, row), list(who), 1)[0]
        torch.testing.assert_close(found.scores[row, :length], expected, rtol=1e-10, atol=1e-10)
    assert found.draws.shape[0] == 1
    assert not found.errors.any()
    torch.testing.assert_close(found.scores.sum(1), found.change)


def test_an_order_and_its_reverse_are_exact_for_pairs(monkeypatch):
    """f = Σ v_i + Σ I_ij on the set of tokens that are left."""
    random = np.random.default_rng(0)
    values, pairs = random.normal(size=9), np.triu(random.normal(size=(9, 9)), 1)

    def quadratic(architecture, texts, rows, read, **options):
        kept = [row.kept(texts[row.text]) for row in rows]
        f = np.array([values[k].sum() + pairs[np.ix_(k, k)].sum() for k in kept])
        return read(torch.tensor(f)[:, None], torch.tensor([row.text for row in rows]))

    monkeypatch.setattr(coalitions, "evaluate", quadratic)
    found = lrp.shapley_values(tiny.build("bert"), tiny.texts((9,)), target=0, permutations=4)
    both = pairs + pairs.T
    content = np.r_[1:8]
    expected = values[content] + both[np.ix_(content, content)].sum(1) / 2
    expected += both[np.ix_(content, [0, 8])].sum(1)  # with what always stays
    np.testing.assert_allclose(found.draws[:, 0, 1:8], np.tile(expected, (2, 1)))


def test_the_seed_decides():
    model, inputs = tiny.build("bert"), tiny.texts((9, 7))
    draws = [lrp.shapley_values(model, inputs, permutations=4, seed=s).draws for s in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.allclose(draws[0], draws[2])


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "llama-lm"])
def test_pairs_are_two_keys_masked_at_once(name):
    model, inputs = tiny.build(name), tiny.texts((7, 4))
    found = lrp.leave_two_out(model, inputs, target=1)
    loo = lrp.leave_one_out(model, inputs, target=1)
    torch.testing.assert_close(found.loo, loo, rtol=1e-10, atol=1e-10)
    for row, length in enumerate((7, 4)):
        one = tiny.row(inputs, row)
        own = range(1, length - 1)
        for i, j in combinations(own, 2):
            both = slow_f(model, one, [], 1) - slow_f(model, one, [i, j], 1)
            expected = both - float(loo[row, i] + loo[row, j])
            assert float(found.interactions[row, i, j]) == pytest.approx(expected, abs=1e-10)
        content = found.interactions[row, 1 : length - 1, 1 : length - 1]
        assert torch.equal(content.isnan(), torch.eye(length - 2, dtype=torch.bool))
        assert torch.equal(content.nan_to_num(), content.T.nan_to_num())
    assert found.interactions[:, 0].isnan().all()


def test_images_lose_patches():
    model, inputs = tiny.build("vit"), tiny.images()
    found = lrp.shapley_values(model, inputs, permutations=4)
    assert not found.scores[:, 0].any()
    torch.testing.assert_close(found.scores.sum(1), found.change)
    pairs = lrp.leave_two_out(model, inputs).interactions
    assert int((~pairs.isnan()).sum()) == 3 * 4 * 3


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
@pytest.mark.parametrize("head_stays", [True, False])
def test_what_goes_from_a_text_longer_than_the_window_is_hidden(name, head_stays):
    model, inputs = tiny.build(name, sliding_window=3), tiny.texts((8, 5))
    f = coalitions.Coalitions(model, inputs, special=True, target=1)
    sets = [[1, 2], [0, 3, 5], [4, 6, 7], [7]]
    values = f.values([sets, []], "sets", head_stays=head_stays)[0]
    for value, gone in zip(values, sets, strict=True):
        mask = torch.ones(1, 8, dtype=torch.long)
        mask[0, gone] = 0
        place = 7 if head_stays else int(mask[0].nonzero().max())
        states = model.model(input_ids=inputs["input_ids"][:1], attention_mask=mask)[0][0, place]
        torch.testing.assert_close(value, model.score(states)[1])
