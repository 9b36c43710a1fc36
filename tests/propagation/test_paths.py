"""Relevance by path against the explicit rules taken by hand, and against what must add up."""

import pytest
import torch

import lrputils as lrp
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT
from lrputils.propagation.layerwise import PATHS, relevance_paths
from tests import reference, tiny

BERT_TEXT = torch.tensor([2, 17, 9, 30, 3])
BY_HAND = {
    "attnlrp": ATTN_LRP,
    "cp": CP_LRP,
    "identity": ATTN_LRP.but(attention="identity"),
}


def by_hand(model, rule, monkeypatch, *, follow):
    """Explicit rules: relevance `(tokens,)` at the words, if only one path's share goes on.

    `follow=(layer, path)`: below that layer.
    """
    delivered = {}
    back, down = reference._back, reference._Layer.backward
    current = []

    def recording(module, x, relevance, eps):
        result = back(module, x, relevance, eps)
        for layer, block in enumerate(model.bert.encoder.layer):
            maps = block.attention.self
            for path in ("value", "query", "key"):
                if module is getattr(maps, path):
                    delivered[layer, path] = result
        return result

    def backward(self, relevance, attention_rule, eps):
        whole = down(self, relevance, attention_rule, eps)
        layer = next(i for i, b in enumerate(model.bert.encoder.layer) if b is self.block)
        current.append(layer)
        nothing = torch.zeros_like(whole)
        three = {path: delivered.get((layer, path), nothing) for path in PATHS[:3]}
        if follow[0] != layer:
            return whole
        return three.get(follow[1], whole - sum(three.values()))

    with monkeypatch.context() as patch:
        patch.setattr(reference, "_back", recording)
        patch.setattr(reference._Layer, "backward", backward)
        _, words = reference.bert(model, BERT_TEXT, 1, lambda _: rule)
    assert current == [2, 1, 0]
    return words


@pytest.mark.parametrize("rule", BY_HAND)
def test_what_a_path_carries_to_the_words_is_that_of_the_explicit_rules(rule, monkeypatch):
    model = tiny.build("bert")
    found = relevance_paths(model, {"input_ids": BERT_TEXT[None]}, BY_HAND[rule], target=1)
    for layer in (0, 2):
        for place, path in enumerate(PATHS):
            words = by_hand(model, rule, monkeypatch, follow=(layer, path))
            assert float((found[layer, place, 0] - words).abs().max()) <= 1e-9


@pytest.mark.parametrize(
    ("name", "composite"),
    tiny.cases([ATTN_LRP, CP_LRP, ATTN_LRP.bypass({1}), GRADIENT], [ATTN_LRP, CP_LRP]),
)
def test_in_every_layer_the_paths_add_up_to_the_map(name, composite):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    found = relevance_paths(model, inputs, composite)
    expected = lrp.attribute(model, inputs, composite)
    assert found.shape == (3, 4, *expected.shape)
    assert found.dtype == torch.float64
    for layer in found:
        assert tiny.close(layer.sum(0), expected, 1e-6)  # `attribute` answers in float32


def test_memory_bounds_change_nothing_and_the_model_is_left_as_it_was():
    model, inputs = tiny.build("qwen2"), tiny.texts()
    assert tiny.close(
        relevance_paths(model, inputs, batch_tokens=1), relevance_paths(model, inputs), 1e-12
    )
    assert model.config._attn_implementation == "sdpa"
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"readout": "words"}, ValueError, "has no read-out 'words'"),
        ({"batch_tokens": 0}, ValueError, "batch_tokens=0"),
        ({"composite": "attnlrp"}, TypeError, "a composite is wanted"),
        ({"composite": ATTN_LRP.bypass({3})}, ValueError, r"layers \[3\] do not exist"),
    ],
)
def test_mistakes_are_named(options, error, words):
    with pytest.raises(error, match=words):
        relevance_paths(tiny.build("bert"), tiny.texts(), **options)
