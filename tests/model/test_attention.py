"""Routing attention calls: the same numbers, the right layers, the right masks."""

import itertools

import pytest
import torch

from lrputils.model.architectures import describe
from lrputils.model.attention import Recorder, fused, stepwise
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
