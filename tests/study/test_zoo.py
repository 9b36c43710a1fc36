"""Small models of every family: gates, brackets in SwiGLU, shared keys, and no softmax."""

from __future__ import annotations

import copy

import pytest
import torch

import lrputils as lrp
from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall, additive, fused, routed
from lrputils.model.families import FAMILIES
from lrputils.model.forwards import replaced, run
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, RULES, installed
from lrputils.propagation.conservation import without_biases
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study import zoo
from lrputils.study.zoo import linear
from recipes import planted
from recipes import small_models as recipe
from tests import tiny


@torch.no_grad()
def hidden_one_by_one(model, inputs):
    """LOO by its definition: for each token a forward pass in which no query sees its key.

    Of the class predicted on the whole input, `(batch, tokens)`, 0 at padding.
    """
    architecture = describe(model)
    arguments = architecture.arguments(inputs)
    whole = run(architecture, arguments)
    target, tokens = whole.argmax(1, keepdim=True), 0

    def hiding(call, token=None):
        nonlocal tokens
        tokens = call.key.shape[2]
        scores = call.scores() + additive(call.mask, call.query.dtype)
        seen = call.seen().clone()
        if token is not None:
            seen[..., token] = False
        # A query that sees nothing gets zeros, as from the fused kernel.
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        return call.combined(weights), None

    with routed(architecture, hiding):
        run(architecture, arguments)
    scores = []
    for token in range(tokens):
        with routed(architecture, lambda call, token=token: hiding(call, token)):
            scores.append(whole - run(architecture, arguments))
    return torch.stack([score.gather(1, target)[:, 0] for score in scores], 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_rules_and_loo_hold_on_every_family(name):
    model, ids = zoo.build(name), torch.randint(4, zoo.VOCABULARY, (2, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs = zoo.images(2)[0] if FAMILIES[name].vision else inputs
    assert lrp.check(model, inputs).passed
    # Some families' norms compute in float32 in a model of any precision.
    slow = hidden_one_by_one(model, inputs)
    torch.testing.assert_close(leave_one_out(model, inputs), slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mpnet", "roberta"])
def test_positions_after_a_padding_token_with_another_id(name):
    model, inputs = tiny.build(name, pad_token_id=0), tiny.texts((6,))
    slow = hidden_one_by_one(model, inputs)
    torch.testing.assert_close(leave_one_out(model, inputs), slow, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize("product", ["third-up", "quarter-up"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_every_bracketing_conserves_where_cp_does(name, product):
    model = without_biases(tiny.build(name))
    assert lrp.check(model, composite=CP_LRP.but(product=product)).passed


def ungrouped(model):
    """The same function with keys and values of its own for every query head: copies."""
    config = copy.deepcopy(model.config)
    groups = config.num_key_value_heads
    config.num_key_value_heads = config.num_attention_heads

    def copied(path, rows):
        if not (".k_proj." in path or ".v_proj." in path):
            return rows
        times = config.num_attention_heads // groups
        return rows.unflatten(0, (groups, -1)).repeat_interleave(times, 0).flatten(0, 1)

    other = type(model)(config).to(model.dtype).eval().requires_grad_(False)
    other.load_state_dict({path: copied(path, rows) for path, rows in model.state_dict().items()})
    return other


def test_shared_keys_and_values_are_no_further_product():
    model, inputs = zoo.build("qwen3"), tiny.texts()
    other = ungrouped(model)
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
        slow = sum(0.7 / 8 * (q @ keys[i]) * values[i] for i in range(kept))
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


def test_without_a_softmax_the_rules_conserve():
    model, inputs = without_biases(tiny.build("bert")), tiny.texts()
    architecture = lrp.describe(model)
    with installed(architecture, CP_LRP.rule, linear):
        reading = read(architecture, inputs)
        (back,) = torch.autograd.grad(reading.output.sum(), reading.inputs[:1])
    total = (reading.inputs[0] * back).sum((1, 2))
    torch.testing.assert_close(total, reading.output)


def predicted(model, inputs, kernel):
    with routed(architecture := lrp.describe(model), kernel), torch.no_grad():
        return read(architecture, inputs).target


@pytest.mark.parametrize("name", [name for name in zoo.SHIPPED if name != "planted"])
def test_the_shipped_models_are_there_and_learned_something(name):
    model = zoo.load(name)
    kernel = linear if name.endswith(zoo.LINEAR) else fused
    if name.startswith("vit"):
        inputs, data = zoo.images(100)
        right = predicted(model, inputs, kernel).numpy() == data.test_labels[:100]
        assert right.mean() > 0.9
        return
    if name.endswith(zoo.RULE):
        ids, mask = planted.drawn(300, torch.Generator().manual_seed(1))
        inputs = {"input_ids": ids, "attention_mask": mask}
        right = (predicted(model, inputs, kernel) > 0) == (planted.rule(ids, mask) > 0)
        assert right.double().mean() > 0.95
        return
    texts = lrp.load_texts("reviews", limit=100, seed=1)
    inputs = model.encode(list(texts), truncate=True)
    known = model.number_labels(texts.labels)
    assert (predicted(model, inputs, kernel).numpy() == known).mean() > 0.6


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


def test_brackets_move_no_relevance_between_tokens_at_the_blocks_input():
    """The chapter's proposition, in the last layer of a random Llama without biases."""
    model, inputs = without_biases(tiny.build("llama")), tiny.texts((6, 6))
    norm = model.model.layers[-1].post_attention_layernorm
    totals = []
    for product in ("halved", "quarter-up", "third-up", "gate-held"):
        composite = ATTN_LRP.but(product=product)
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
