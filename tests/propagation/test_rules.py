"""Each fast rule against its explicit ε-rule, in float64."""

import pytest
import torch
import torch.nn.functional as F

from lrputils.model.attention import AttentionCall, fused, stepwise
from lrputils.model.readout import read
from lrputils.propagation import rules
from lrputils.propagation.composites import ATTN_LRP, propagating
from tests import reference, tiny


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def relevance_by_gradient(output, relevance, *inputs):
    """x ⊙ g at each input, where relevance / output flows in: the fast form of every rule."""
    gradients = torch.autograd.grad(output, inputs, relevance / output.detach(), allow_unused=True)
    return [
        torch.zeros_like(x) if g is None else (x * g).detach()
        for x, g in zip(inputs, gradients, strict=True)
    ]


def close(fast: torch.Tensor, slow: torch.Tensor, tolerance: float = 1e-10) -> bool:
    return float((fast - slow).abs().max()) <= tolerance * max(1.0, float(slow.abs().max()))


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 4])
def test_attention_rules(tokens, size):
    query, key, value = (random(1, 1, tokens, size, seed=s).requires_grad_() for s in (1, 2, 3))
    relevance, scale = random(tokens, size), 0.7
    q, k, v = (t.detach()[0, 0] for t in (query, key, value))
    scores = scale * q @ k.T
    weights = torch.softmax(scores, 1)

    of_weights, of_value = reference.product(weights, v, relevance, 0.0)
    of_query, of_key = reference.product(scale * q, k.T, reference.softmax(scores, of_weights), 0.0)
    whole_value = reference.constant_weights(weights, v, relevance, 0.0)
    none = torch.zeros_like(q)
    expected = {
        "attnlrp": (of_query, of_key.T, of_value),
        "cp": (none, none, whole_value),
        "half-value": (none, none, of_value),
        "whole-value": (of_query, of_key.T, whole_value),
        "query-closed": (none, of_key.T, of_value),
        "key-closed": (of_query, none, of_value),
    }
    for attention in (lambda *x: fused(AttentionCall(0, *x, None, scale))[0], by_steps(scale)):
        for rule, slow in expected.items():
            output = attention(*rules.ATTENTION[rule](query, key, value))
            fast = relevance_by_gradient(output, relevance[None, :, None], query, key, value)
            assert all(close(f[0, 0], s) for f, s in zip(fast, slow, strict=True)), rule


def test_the_softmax_taken_as_the_identity_drops_relevance_at_zero():
    """`test_a_whole_bert_equals_the_other_rules` has the rule itself."""
    zero = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(rules._identity_softmax(zero, -1).sum(), zero)
    assert torch.equal(gradient, torch.zeros_like(zero))


def by_steps(scale):
    return lambda *factors: stepwise(AttentionCall(0, *factors, None, scale))[0]


@pytest.mark.parametrize("function", [F.gelu, torch.tanh, F.silu, F.relu])
def test_identity_rule_keeps_relevance_and_drops_it_at_zero(function):
    x = random(5, 3).requires_grad_()
    y = rules.identity_rule(function, x)
    assert torch.equal(y, function(x))
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert close(gradient * x.detach(), y.detach())
    zero = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(rules.identity_rule(function, zero).sum(), zero)
    assert torch.equal(gradient, torch.zeros_like(zero))


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (3, 4), (2, 7)])
@pytest.mark.parametrize("eps", [1e-12, 1e-2])
@pytest.mark.parametrize("mean", [False, True])
def test_layer_norm(rows, size, eps, mean):
    x, weight, bias = random(rows, size).requires_grad_(), random(size), random(size, seed=1)
    relevance = random(rows, size, seed=2)
    y = rules.held_layer_norm(x, (size,), weight, bias, eps, mean=mean)
    assert torch.equal(y, F.layer_norm(x, (size,), weight, bias, eps))
    (fast,) = relevance_by_gradient(y, relevance, x)
    explicit = reference.held_layer_norm if mean else reference.layer_norm
    assert close(fast, explicit(x.detach(), weight, bias, eps, relevance, 0.0))


@pytest.mark.parametrize("bypassed", [set(), {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("length", [1, 4])
def test_a_whole_bert_equals_the_explicit_rules(bypassed, length):
    composite = ATTN_LRP.bypass(bypassed)
    agree(composite, length, lambda layer: "cp" if layer in bypassed else "attnlrp")


@pytest.mark.parametrize("length", [1, 4])
def test_a_whole_bert_equals_the_other_rules(length):
    agree(ATTN_LRP.but(attention="identity"), length, lambda layer: "identity")
    agree(ATTN_LRP.but(head="gradient"), length, lambda layer: "attnlrp", head_rule="gradient")
    mixed = ATTN_LRP.but(layers=[1], attention="identity")
    agree(mixed, length, lambda layer: "identity" if layer == 1 else "attnlrp")


def agree(composite, length, attention_rule, **options):
    model = tiny.build("bert", seed=length)
    inputs = tiny.texts((length,), seed=length)
    with propagating(model, composite) as architecture:
        reading = read(architecture, inputs)
        fast = reading.relevance(reading.gradient())[0]
    ids, target = inputs["input_ids"][0], int(reading.target)
    logits, slow = reference.bert(model, ids, target, attention_rule, **options)
    assert close(reading.logits[0], logits)
    assert close(fast, slow)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rms_norm_spelled_out(eps):
    """A norm that no function computes: its reciprocal root is held, in the model itself."""
    model, inputs = tiny.build("llama", dtype=torch.float64), tiny.texts((5,))
    norm, taken = model.model.norm, []
    norm.variance_epsilon = eps
    norm.register_forward_hook(lambda module, given, output: taken.append((given[0], output)))
    with propagating(model, ATTN_LRP) as architecture:
        reading = read(architecture, inputs)
    x, y = taken[-1]
    (flowing,) = torch.autograd.grad(reading.output.sum(), y, retain_graph=True)
    (gradient,) = torch.autograd.grad(reading.output.sum(), x)
    relevance = (y * flowing).detach()[0]
    slow = reference.rms_norm(x.detach()[0], norm.weight, eps, relevance, 0.0)
    assert close((x * gradient).detach()[0], slow, 1e-6)
