"""All variants at once equal one `bypass_layers` after the other; paths are the explicit rules'."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lrputils as lrp
from lrputils.model import readout
from lrputils.propagation import layerwise
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT
from lrputils.propagation.layerwise import PATHS, relevance_paths
from tests import reference, tiny

ABLATIONS = (
    [range(k + 1) for k in range(3)] + [range(k, 3) for k in range(3)] + [{k} for k in range(3)]
)


def one_by_one(model, inputs, layer_sets, **options):
    maps = [
        lrp.attribute(model, inputs, "attnlrp", bypass_layers=layers, **options)
        for layers in layer_sets
    ]
    return torch.stack(maps)


@pytest.mark.parametrize(
    ("name", "dtype"), tiny.cases([torch.float32, torch.float64], [torch.float32])
)
def test_the_papers_ablations(name, dtype):
    model, inputs = tiny.build(name, dtype=dtype), tiny.inputs_for(name)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    found = lrp.layerwise_bypass(model, inputs, ABLATIONS)
    assert found.shape == (9, *one_by_one(model, inputs, [()])[0].shape)
    assert found.dtype == torch.float32
    assert tiny.close(found, one_by_one(model, inputs, ABLATIONS))


@pytest.mark.parametrize("readout", ["sum", "post-norm"])
@pytest.mark.parametrize("verb", ["layers", "paths"])
def test_every_readout_and_target(readout, verb):
    model, inputs = tiny.build("electra"), tiny.texts()
    options = {"readout": readout, "target": [0, 1, 2], "batch_tokens": 30}
    if verb == "layers":
        found = lrp.layerwise_bypass(model, inputs, ABLATIONS, **options)
    else:
        found = layerwise.relevance_paths(model, inputs, **options).sum(1)
    sets = ABLATIONS if verb == "layers" else [()] * 3
    del options["batch_tokens"]
    assert tiny.close(found, one_by_one(model, inputs, sets, **options))


@settings(max_examples=10)
@given(st.lists(st.sets(st.integers(0, 2)), min_size=1, max_size=5), st.integers(1, 60))
def test_any_sets_in_any_order_with_any_memory(layer_sets, batch_tokens):
    model, inputs = tiny.build("albert"), tiny.texts((4, 2))
    found = lrp.layerwise_bypass(model, inputs, layer_sets, batch_tokens=batch_tokens)
    assert tiny.close(found, one_by_one(model, inputs, layer_sets))


def test_there_is_one_forward_pass_and_each_suffix_goes_back_once(monkeypatch):
    model, inputs = tiny.build("bert"), tiny.texts()
    forwards, gradients = [], []
    run = readout.run
    lrp.layerwise_bypass(model, inputs, [()])  # the rules are proved once
    monkeypatch.setattr(readout, "run", lambda *given: forwards.append(1) or run(*given))
    batched = layerwise.pulled_back

    def count(output, source, above, rows):
        gradients.append(len(above))
        return batched(output, source, above, rows)

    monkeypatch.setattr(layerwise, "pulled_back", count)
    lrp.layerwise_bypass(model, inputs, ABLATIONS)
    assert len(forwards) == 1
    suffixes = [{tuple(x for x in s if x >= layer) for s in ABLATIONS} for layer in range(3)]
    through_blocks = sum(map(len, suffixes))
    at_the_readout = len(suffixes[0])
    assert sum(gradients) == through_blocks + at_the_readout


BERT_TEXT = torch.tensor([2, 17, 9, 30, 3])
BY_HAND = {
    "attnlrp": ATTN_LRP,
    "cp": CP_LRP,
    "identity": ATTN_LRP.but(attention="identity"),
}


@pytest.mark.parametrize("rule", BY_HAND)
def test_what_a_path_carries_to_the_words_is_that_of_the_explicit_rules(rule):
    model = tiny.build("bert")
    found = relevance_paths(model, {"input_ids": BERT_TEXT[None]}, BY_HAND[rule], target=1)
    for layer in (0, 2):
        for place, path in enumerate(PATHS):
            follow = {"follow": (layer, path)}
            _, words = reference.bert(model, BERT_TEXT, 1, lambda _: rule, **follow)
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


@pytest.mark.parametrize(
    ("verb", "options", "error", "words"),
    [
        (lrp.layerwise_bypass, {"layer_sets": []}, ValueError, "empty"),
        (lrp.layerwise_bypass, {"layer_sets": [{3}]}, ValueError, "0 to 2"),
        (lrp.layerwise_bypass, {"layer_sets": [{0}, {2, 7}]}, ValueError, r"\[7\]"),
        (lrp.layerwise_bypass, {"layer_sets": [1]}, ValueError, "write {1}"),
        (lrp.layerwise_bypass, {"layer_sets": [{-1}]}, ValueError, r"\[-1\]"),
        (relevance_paths, {"readout": "words"}, ValueError, "has no read-out 'words'"),
        (relevance_paths, {"batch_tokens": 0}, ValueError, "batch_tokens=0"),
        (relevance_paths, {"composite": "attnlrp"}, TypeError, "a composite is wanted"),
        (relevance_paths, {"composite": ATTN_LRP.bypass({3})}, ValueError, r"\[3\] do not exist"),
    ],
)
def test_mistakes_are_named(verb, options, error, words):
    with pytest.raises(error, match=words):
        verb(tiny.build("bert"), tiny.texts(), **options)
