"""Gates 1 and 4, composites as values, and that a model always comes back as it was."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from lrputils.model.architectures import describe
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT, Composite, propagating
from tests import tiny


def relevance(model, inputs, composite, **options):
    with propagating(model, composite) as architecture:
        reading = read(architecture, inputs, **options)
        return reading.relevance(reading.gradient()), reading


def in_float32(name):
    inputs = tiny.inputs_for(name)
    if name == "vit":
        inputs = {key: value.float() for key, value in inputs.items()}
    return tiny.build(name, dtype=torch.float32), inputs


def state(model):
    """Everything that installing rules could leave behind."""
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
        for m in model.modules()
    ]
    forwards = [m.__dict__.get("forward") for m in model.modules()]
    configs = [m.config._attn_implementation for m in model.modules() if hasattr(m, "config")]
    modes = [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]
    return hooks, forwards, configs, modes


# --- gate 1 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "composite"),
    tiny.cases([ATTN_LRP, CP_LRP, ATTN_LRP.bypass({1}), GRADIENT], [ATTN_LRP, CP_LRP]),
)
def test_logits_are_those_of_the_plain_model(name, composite):
    model, inputs = in_float32(name)
    plain = read(describe(model), inputs).logits
    _, reading = relevance(model, inputs, composite)
    assert float((reading.logits - plain).abs().max()) <= 1e-6 * max(1, float(plain.abs().max()))


@pytest.mark.parametrize("name", tiny.NAMES)
def test_the_model_is_as_before(name):
    model, inputs = in_float32(name)
    before = state(model)
    plain = read(describe(model), inputs)
    gradient = plain.gradient()
    relevance(model, inputs, ATTN_LRP)
    with pytest.raises(ZeroDivisionError), propagating(model, CP_LRP):
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="target"):
        relevance(model, inputs, CP_LRP, target=10**6)
    after = read(describe(model), inputs)
    assert state(model) == before
    assert torch.equal(after.logits, plain.logits)
    assert torch.equal(after.gradient(), gradient)


# --- gate 4 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.NAMES)
def test_bypassing_all_layers_is_cp_and_none_is_attnlrp(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    layers = describe(model).layers
    everything, _ = relevance(model, inputs, ATTN_LRP.bypass(range(layers)))
    nothing, _ = relevance(model, inputs, ATTN_LRP.bypass(()))
    assert torch.equal(everything, relevance(model, inputs, CP_LRP)[0])
    assert torch.equal(nothing, relevance(model, inputs, ATTN_LRP)[0])
    assert not torch.allclose(everything, nothing)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_the_gradient_composite_is_the_plain_gradient(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    if "RMSNorm" in str(model):
        # Their own norms round to float32, whatever the model's dtype.
        model, inputs = tiny.build(name, dtype=torch.float32), tiny.texts()
    plain = read(describe(model), inputs)
    expected = plain.relevance(plain.gradient())
    scores, _ = relevance(model, inputs, GRADIENT)
    assert torch.allclose(scores, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


# --- composites as values -------------------------------------------------------------------------


def test_composites_are_values():
    assert ATTN_LRP.bypass([2, 1]) == ATTN_LRP.bypass({1}).bypass({2})
    assert ATTN_LRP.bypass(()) == ATTN_LRP
    assert ATTN_LRP.bypass(layer for layer in (1, 2)) == ATTN_LRP.bypass({1, 2})
    assert ATTN_LRP.bypass(np.arange(2)) == ATTN_LRP.bypass({0, 1})
    assert hash(ATTN_LRP.bypass({0})) == hash(ATTN_LRP.bypass({0}))
    assert CP_LRP.but(norm="gradient").norm == "gradient"
    assert CP_LRP.norm == "held-std"
    assert ATTN_LRP.but(layers={1}, activation="gradient").layers == (1,)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CP_LRP.but(norm="nope"), ["nope", "held-std"]),
        (lambda: CP_LRP.but(softmax="cp"), ["softmax", "attention"]),
        (lambda: CP_LRP.but(layers={0}, softmax="cp"), ["softmax", "attention"]),
        (lambda: Composite(attention="cp", product="nope"), ["nope", "gate-held"]),
        (lambda: ATTN_LRP.bypass({-1}), ["-1"]),
        (lambda: ATTN_LRP.bypass({"last", 1}), ["last"]),
        (lambda: ATTN_LRP.bypass(3), ["write .3"]),
        (lambda: ATTN_LRP.bypass(None), ["None", r"write \(\)"]),
        (lambda: relevance(tiny.build("bert").train(), tiny.texts(), CP_LRP), ["model.eval"]),
        (
            lambda: propagating(tiny.build("bert"), ATTN_LRP.bypass({7})).__enter__(),
            ["7", "0 to 2"],
        ),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=".*".join(words)):
        make()


# --- nesting, other models, threads ---------------------------------------------------------------


def test_nesting_is_refused_and_leaves_the_outer_rules_in_place():
    model, inputs = tiny.build("bert"), tiny.texts()
    expected, _ = relevance(model, inputs, CP_LRP)
    with propagating(model, CP_LRP) as architecture:
        with pytest.raises(RuntimeError, match="first `with` block"), propagating(model, ATTN_LRP):
            pass
        reading = read(architecture, inputs)
        assert torch.equal(reading.relevance(reading.gradient()), expected)


@pytest.mark.parametrize("name", ["bert", "llama-lm"])
def test_rules_of_two_models_end_in_any_order(name):
    first, second, inputs = tiny.build(name, seed=1), tiny.build(name, seed=2), tiny.texts()
    expected, _ = relevance(second, inputs, CP_LRP)
    with ExitStack() as outer, ExitStack() as inner:
        outer.enter_context(propagating(first, ATTN_LRP))
        architecture = inner.enter_context(propagating(second, CP_LRP))
        outer.close()
        reading = read(architecture, inputs)
        assert torch.equal(reading.relevance(reading.gradient()), expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_threads_share_a_model_with_rules_of_their_own(implementation):
    model, inputs = tiny.build("gpt2"), tiny.texts()
    model.set_attn_implementation(implementation)
    composites = [None, ATTN_LRP, CP_LRP, ATTN_LRP.bypass({1})]
    before = state(model)

    def compute(composite):
        if composite is not None:
            return relevance(model, inputs, composite)[0]
        reading = read(describe(model), inputs)
        return reading.relevance(reading.gradient())

    expected = [compute(composite) for composite in composites]
    barrier = threading.Barrier(len(composites))

    def work(composite):
        barrier.wait()
        return [compute(composite) for _ in range(10)]

    with ThreadPoolExecutor(len(composites)) as pool:
        for found, right in zip(pool.map(work, composites), expected, strict=True):
            # A thread without rules may meet the other threads' kernel, which rounds otherwise.
            assert all(torch.allclose(one, right, rtol=1e-9, atol=1e-12) for one in found)
    assert state(model) == before
