"""Small models: brackets in SwiGLU, no softmax, and the planted rule."""

import pytest
import torch

from experiments import small_models as recipe
from experiments import zoo
from experiments.zoo import linear
from lrputils.model.attention import AttentionCall
from lrputils.model.proof import laid_out
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, RULES, installed
from tests import tiny


@pytest.mark.parametrize(
    ("product", "up"), [("halved", 1 / 2), ("quarter-up", 1 / 4), ("third-up", 1 / 3)]
)
def test_a_composite_sends_back_what_its_brackets_say(product, up):
    generator, composite = torch.Generator().manual_seed(0), ATTN_LRP.but(product=product)
    x, u = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    x, u = x.requires_grad_(), u.requires_grad_()
    silu = RULES["activation"][composite.activation](torch.nn.functional.silu, x)
    left, right = RULES["product"][composite.product](silu, u)
    y = left * right
    for share, factor in ((1 - up, x), (up, u)):
        (back,) = torch.autograd.grad(y.sum(), factor, retain_graph=True)
        torch.testing.assert_close(factor * back, share * y)


def test_linear_attention_by_its_definition():
    factors = torch.randn(
        (3, 2, 2, 5, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    seen = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    seen[1, ..., -2:] = False
    call = AttentionCall(0, *factors, seen, 0.7)
    output = linear(call)[0]
    for b, h, j in torch.cartesian_prod(*map(torch.arange, (2, 2, 5))).tolist():
        q, keys, values = call.query[b, h, j], call.key[b, h], call.value[b, h]
        kept = 3 if b else 5
        slow = sum(0.7 / 8 * (q @ keys[i]) * values[i] for i in range(kept))
        torch.testing.assert_close(output[b, j, h], slow)


def test_without_a_softmax_the_rules_conserve():
    model, inputs = tiny.build("bert"), tiny.texts()
    architecture = laid_out(model)
    with installed(architecture, CP_LRP.rule, linear, constants=False):
        reading = read(architecture, inputs)
        (back,) = torch.autograd.grad(reading.output.sum(), reading.inputs[:1])
    total = (reading.inputs[0] * back).sum((1, 2))
    torch.testing.assert_close(total, reading.output)


def test_an_unknown_small_model_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"no small model 'gpt3' of seed 0; there are bert \(5"):
        zoo.load("gpt3")


@pytest.mark.parametrize("name", ["bert-linear", "llama"])
def test_what_the_recipe_trains_can_be_loaded(name, tmp_path):
    def batches(generator):
        ids = torch.randint(5, 90, (4, 6), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids[:, 0] % 2

    trained = recipe.train(name, 0, batches, steps=2)
    zoo.save({0: trained}, name, tmp_path)
    loaded = zoo.load(name, 0, tmp_path)
    inputs = batches(torch.Generator().manual_seed(0))[0]
    with torch.no_grad():
        pair = [each(**inputs).logits.double() for each in (trained, loaded.model)]
    torch.testing.assert_close(*pair, rtol=1e-2, atol=1e-2)


def error(model) -> float:
    """Root mean square of f less the rule's, on new texts."""
    inputs, _ = recipe._rule_batches(torch.Generator().manual_seed(10**6), 2000)
    f = model(**inputs).logits[:, 1]
    return float((f - recipe.rule(*inputs.values())).square().mean().sqrt())


def test_the_rule_by_hand():
    S, R, Q, A, B = range(recipe.S, recipe.B + 1)
    ids = torch.tensor([[S, 9, 9], [R, Q, 9], [A, B, 9], [A, 9, 9], [9, 9, 9], [A, B, R]])
    assert recipe.rule(ids, torch.ones_like(ids)).tolist() == [1, 1, 1, -1, -1, 1]
    first_hidden = torch.tensor([0, 1, 1]).expand_as(ids)
    assert recipe.rule(ids, first_hidden).tolist() == [-1, 1, -1, -1, -1, 1]


def test_training_approaches_the_rule_and_can_be_loaded(tmp_path):
    few = recipe._train_planted(0, 2)
    assert error(recipe._train_planted(0, 30)) < error(few)
    zoo.save({0: few}, "planted", tmp_path)
    again = zoo.load("planted", 0, tmp_path).state_dict()
    for name, tensor in few.state_dict().items():
        torch.testing.assert_close(again[name], tensor, atol=1e-2, rtol=1e-3)
