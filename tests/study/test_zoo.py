"""Small models of every family: gates, brackets in SwiGLU, shared keys, and no softmax."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils import stats
from lrputils.model.attention import AttentionCall, fused
from lrputils.model.families import FAMILIES
from lrputils.model.forwards import replaced
from lrputils.model.readout import Blocks, read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, RULES, installed
from lrputils.propagation.conservation import without_biases
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study import gates, planted, swiglu, without_softmax, zoo
from lrputils.study.without_softmax import SCALE, linear
from recipes import small_models as recipe
from tests import tiny


def test_every_family_passes_its_gates():
    found = gates.of_families()
    assert list(found.index) == list(FAMILIES)
    assert found.passed.all()
    assert (found.AttnLRP > 1e-3).all()


def test_a_gate_can_fail(monkeypatch):
    wrong = CP_LRP.but(norm="gradient")
    monkeypatch.setattr(gates, "check", lambda *args: lrp.check(*args, composite=wrong))
    monkeypatch.setattr(gates, "leave_one_out", lambda *args, **_: 2 * leave_one_out(*args))
    found = gates.gates({"bert": (tiny.build("bert"), tiny.texts())}).loc["bert"]
    assert not found.passed
    assert found["CP-LRP"] > gates.LIMITS["CP-LRP"]
    assert found["LOO"] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["mpnet", "roberta"])
def test_positions_after_a_padding_token_with_another_id(name):
    model, inputs = tiny.build(name, pad_token_id=0), tiny.texts((6,))
    slow = gates.hidden_one_by_one(model, inputs)
    torch.testing.assert_close(leave_one_out(model, inputs), slow, rtol=1e-9, atol=1e-9)


def test_a_composite_sends_back_what_its_tree_says():
    table, generator = swiglu.table(), torch.Generator().manual_seed(0)
    gate, up = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    for name, composite in swiglu.BRACKETINGS.items():
        x, u = (part.clone().requires_grad_() for part in (gate, up))
        silu = RULES["activation"][composite.activation](torch.nn.functional.silu, x)
        left, right = RULES["product"][composite.product](silu, u)
        y = left * right
        for share, factor in zip(table.loc[name, ["gate", "up"]], (x, u), strict=True):
            (back,) = torch.autograd.grad(y.sum(), factor, retain_graph=True)
            torch.testing.assert_close(factor * back, share * y)
    constant = table[["gate, σ constant", "up, σ constant"]]
    assert (constant == 0.5).all(axis=None)


@pytest.mark.parametrize("product", ["third-up", "quarter-up"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_every_bracketing_conserves_where_cp_does(name, product):
    model = without_biases(tiny.build(name))
    assert lrp.check(model, composite=CP_LRP.but(product=product)).passed


def test_shared_keys_and_values_are_no_further_product():
    model, inputs = zoo.build("qwen3"), tiny.texts()
    other = zoo.ungrouped(model)
    assert other.config.num_key_value_heads == 2 * model.config.num_key_value_heads
    for composite in (ATTN_LRP, CP_LRP):
        maps = [lrp.attribute(each, inputs, composite) for each in (model, other)]
        assert maps[0].abs().max() > 1e-4
        torch.testing.assert_close(*maps)


def calls(batch=2, heads=2, tokens=5, size=3):
    generator = torch.Generator().manual_seed(0)
    shape = (3, batch, heads, tokens, size)
    factors = torch.randn(shape, generator=generator, dtype=torch.float64)
    seen = torch.ones(batch, 1, 1, tokens, dtype=torch.bool)
    seen[1, ..., -2:] = False
    return AttentionCall(0, *factors, seen, 0.7)


def test_linear_attention_by_its_definition():
    call = calls()
    output = linear(call)[0]
    for b, h, j in torch.cartesian_prod(*map(torch.arange, (2, 2, 5))).tolist():
        q, keys, values = call.query[b, h, j], call.key[b, h], call.value[b, h]
        kept = 3 if b else 5
        slow = sum(SCALE * 0.7 * (q @ keys[i]) * values[i] for i in range(kept))
        torch.testing.assert_close(output[b, j, h], slow)


def test_one_linear_layer_has_no_error():
    """The chapter's proposition: CP-LRP is LOO, and AttnLRP three quarters of it."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(1, 5, 4, generator=generator, dtype=torch.float64)
    maps = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
    out = torch.randn(3, generator=generator, dtype=torch.float64)

    def f(x, rule=None, hidden=None):
        seen = torch.ones(1, 1, 1, 5, dtype=torch.bool)
        if hidden is not None:
            seen[..., hidden] = False
        factors = [(x @ each)[:, None] for each in maps]
        factors = factors if rule is None else rule(*factors)
        return linear(AttentionCall(0, *factors, seen, 1.0))[0][0, 0, 0] @ out

    loo = torch.stack([f(states) - f(states, hidden=i) for i in range(5)])
    for name, share in {"cp": 1.0, "attnlrp": 0.75}.items():
        x = states.clone().requires_grad_()
        (back,) = torch.autograd.grad(f(x, RULES["attention"][name]), x)
        torch.testing.assert_close((x * back).sum(-1)[0, 1:], share * loo[1:])


def test_without_a_softmax_the_rules_conserve_and_the_gate_is_a_derivative():
    model, inputs = without_biases(tiny.build("bert")), tiny.texts()
    architecture = lrp.describe(model)
    blocks = Blocks(architecture)
    with installed(architecture, CP_LRP.rule, linear), replaced(blocks.forwards):
        reading = read(architecture, inputs)
        (back,) = torch.autograd.grad(reading.output.sum(), blocks.inputs[:1])
    total = (blocks.inputs[0] * back).sum((1, 2))
    torch.testing.assert_close(total, reading.output)
    for kernel in (fused, linear):
        found, step = without_softmax.maps(model, inputs, kernel)[without_softmax.GATE], 1e-6
        target, ends = without_softmax.predicted(model, inputs, kernel), []
        for sign in (1, -1):
            gate = torch.ones(inputs["input_ids"].shape, dtype=torch.float64)
            gate[:, 1] += sign * step
            with without_softmax.gated(architecture, gate, kernel):
                ends.append(read(architecture, inputs, target=target).output.detach())
        slow = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found[:, 1], slow, rtol=1e-5, atol=1e-8)


def test_loo_without_a_softmax_is_the_plain_difference():
    model, inputs = tiny.build("bert"), tiny.texts((6,))
    found = without_softmax.maps(model, inputs, linear)["LOO"]
    architecture = lrp.describe(model)
    target = without_softmax.predicted(model, inputs, linear)
    outputs = []
    for hidden in (None, 2):
        gate = torch.ones(1, 6, dtype=torch.float64)
        if hidden is not None:
            gate[0, hidden] = 0
        with without_softmax.gated(architecture, gate, linear):
            outputs.append(read(architecture, inputs, target=target).output)
    torch.testing.assert_close(found[:, 2], (outputs[0] - outputs[1]).detach())


@pytest.mark.parametrize("name", [name for name in zoo.SHIPPED if name != "planted"])
def test_the_shipped_models_are_there_and_learned_something(name):
    model = zoo.load(name)
    kernel = linear if name.endswith(zoo.LINEAR) else fused
    if name.startswith("vit"):
        inputs, data = zoo.images(100)
        right = without_softmax.predicted(model, inputs, kernel).numpy() == data.test_labels[:100]
        assert right.mean() > 0.9
        return
    if name.endswith(zoo.RULE):
        ids, mask = planted.drawn(300, torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": mask}
        right = (without_softmax.predicted(model, inputs, kernel) > 0) == (
            planted.rule(ids, mask) > 0
        )
        assert right.double().mean() > 0.95
        return
    texts = lrp.load_texts("reviews", limit=100, seed=1)
    inputs = model.encode(list(texts), truncate=True)
    known = [model.class_numbers[label] for label in texts.labels]
    assert (without_softmax.predicted(model, inputs, kernel).numpy() == known).mean() > 0.6


def test_an_unknown_small_model_is_refused_with_the_list():
    with pytest.raises(ValueError, match=r"no small model 'gpt3' of seed 0; there are bert \(5"):
        zoo.load("gpt3")
    with pytest.raises(ValueError, match="of seed 9"):
        zoo.load("bert", 9)


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


def test_rows_of_pairs_and_their_difference():
    rows = without_softmax.measured(lrp.load_texts("reviews", limit=3, seed=0), 3, range(2))
    assert len(rows) == 2 * 2 * 2 * 3
    found = without_softmax.compared(rows[rows.data == "digits"], "AttnLRP")
    ends = found[without_softmax.LINEAR].value - found[without_softmax.SOFTMAX].value
    assert found["difference"].value == pytest.approx(ends)
    model, (images, _) = zoo.load("vit"), zoo.images(3)
    loo = leave_one_out(model, images)
    slow = stats.pearson(lrp.attribute(model, images, "attnlrp")[:, 1:], loo[:, 1:])
    first = rows[(rows.data == "digits") & (rows.seed == 0)].groupby("attention", sort=False)
    assert first.get_group(without_softmax.SOFTMAX).AttnLRP.to_numpy() == pytest.approx(slow, 1e-4)


def test_brackets_move_no_relevance_between_tokens_at_the_blocks_input():
    """The chapter's proposition, in the last layer of a random Llama without biases."""
    model, inputs = without_biases(tiny.build("llama")), tiny.texts((6, 6))
    norm = model.model.layers[-1].post_attention_layernorm
    totals = []
    for composite in swiglu.COMPOSITES.values():
        seen = []

        def keep(inner, x, seen=seen):
            seen.append(inner(x))
            return seen[0]

        architecture = lrp.describe(model)
        with installed(architecture, composite.rule), replaced({norm: keep}):
            reading = read(architecture, inputs)
            (back,) = torch.autograd.grad(reading.output.sum(), seen)
        totals.append((seen[0] * back).sum(-1))
    for total in totals[1:]:
        torch.testing.assert_close(total, totals[0], rtol=1e-6, atol=1e-9)


def test_what_a_model_answers_without_its_swiglu():
    model, inputs = tiny.build("llama"), tiny.texts()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.zero_()
    assert swiglu.changed_without(model, inputs) == 0
