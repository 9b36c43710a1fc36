"""Routing attention calls: the same numbers, the right layers, the right masks."""

import itertools

import pytest
import torch
from torch import nn

from lrputils.model.architectures import describe
from lrputils.model.attention import Recorder, fused, in_steps, stepwise
from lrputils.model.operations import routed
from tests import tiny


def logits(model, inputs):
    architecture = describe(model)
    arguments = architecture.arguments(inputs)
    with torch.no_grad():
        found = model(**arguments).logits
    return found[arguments["attention_mask"].bool()] if architecture.language_model else found


@pytest.mark.parametrize(
    ("name", "how"),
    tiny.cases(
        itertools.product([stepwise, fused], ["sdpa", "eager"]),
        [(stepwise, "eager"), (fused, "sdpa")],
    ),
)
def test_the_model_computes_the_same(name, how):
    function, implementation = how
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    model.set_attn_implementation(implementation)
    before = model.config._attn_implementation
    plain = logits(model, inputs)
    with routed(model, function):
        assert torch.allclose(logits(model, inputs), plain, rtol=1e-5, atol=1e-5)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["qwen2", "qwen2-lm", "qwen3", "mistral"])
def test_a_sliding_window_stays_a_sliding_window(name):
    own = {} if name == "mistral" else {"use_sliding_window": True, "max_window_layers": 1}
    model, inputs = tiny.build(name, sliding_window=2, **own), tiny.texts()
    plain = logits(model, inputs)
    with routed(model, stepwise):
        assert torch.allclose(logits(model, inputs), plain, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(plain, logits(tiny.build(name), inputs), atol=1e-3)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_layers_are_counted_in_order_in_every_pass(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    with routed(model, seen := Recorder()) as route:
        logits(model, inputs)
        logits(model, inputs)
    assert route.layer is None
    assert [call.layer for call in seen.calls] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("boolean", [True, False])
def test_torch_s_attention_in_steps_is_its_own(batch_first, boolean):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    states = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    later, padding = (
        torch.ones(5, 5).triu(1).bool(),
        torch.arange(5) > torch.tensor([[4], [3], [2]]),
    )
    if not boolean:
        later, padding = (torch.zeros(m.shape).masked_fill(m, -1e9) for m in (later, padding))
    masks = {"key_padding_mask": padding, "need_weights": False}
    for mask in (None, later, later.expand(6, 5, 5)):
        own = module(states, states, states, attn_mask=mask, **masks)[0]
        found = in_steps(module, module.forward, states, states, states, attn_mask=mask, **masks)
        torch.testing.assert_close(found[0], own)
