"""What is found in each model, what is passed to it, and what is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertForMaskedLM,
    BertForSequenceClassification,
)

from lrputils.model.architectures import describe
from lrputils.model.families import FAMILIES
from lrputils.model.forwards import replaced
from tests import tiny


@pytest.mark.parametrize("name", tiny.NAMES)
def test_layers_attentions_and_embeddings_are_found(name):
    model = tiny.build(name)
    found = describe(model)
    assert found.family == name.removesuffix("-lm")
    assert found.layers == model.config.num_hidden_layers == 3
    assert sorted(layer for layers in found.attentions.values() for layer in layers) == [0, 1, 2]
    assert found.causal == (found.family in ("gpt2", "llama", "mistral", "qwen2", "qwen3"))
    assert found.language_model == name.endswith("-lm")
    if name != "vit":
        assert found.word_embeddings is model.get_input_embeddings()
    if found.embedding_norm is not None:
        assert isinstance(found.embedding_norm, nn.LayerNorm)


def test_every_family_is_tested():
    assert set(FAMILIES) == {name.removesuffix("-lm") for name in tiny.NAMES}


@pytest.mark.parametrize(
    ("groups", "inner", "expected"),
    [(1, 1, [(0, 1, 2, 3)]), (2, 1, [(0, 1), (2, 3)]), (2, 2, [(0, 2), (1, 3), (4, 6), (5, 7)])],
)
def test_albert_counts_calls_of_its_shared_blocks(groups, inner, expected):
    model = tiny.build(
        "albert", num_hidden_layers=4, num_hidden_groups=groups, inner_group_num=inner
    )
    found = describe(model)
    assert found.layers == 4 * inner
    assert sorted(found.attentions.values()) == sorted(expected)


# --- refusals -------------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 30,
    "hidden_size": 16,
    "d_model": 16,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "num_attention_heads": 2,
    "n_head": 2,
    "intermediate_size": 16,
    "d_inner": 16,
    "attention_window": 4,
}


@pytest.mark.parametrize("kind", ["deberta-v2", "longformer", "xlnet", "t5", "gptj"])
def test_other_families_are_refused_by_name(kind):
    config = AutoConfig.for_model(kind, **SMALL)
    model = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(TypeError, match=type(model).__name__):
        describe(model)


def test_other_heads_are_refused_by_name():
    bert = tiny.build("bert")
    with pytest.raises(TypeError, match="BertForMaskedLM is not covered"):
        describe(BertForMaskedLM(bert.config))
    with pytest.raises(TypeError, match="BertModel is not covered"):
        describe(bert.bert)
    with pytest.raises(TypeError, match="Linear is not a transformers model"):
        describe(nn.Linear(2, 2))


def test_a_subclass_counts_unless_it_computes_something_else():
    class Renamed(BertForSequenceClassification):
        pass

    class Different(BertForSequenceClassification):
        def forward(self, **inputs):
            return super().forward(**inputs)

    config = tiny.build("bert").config
    assert describe(Renamed(config)).family == "bert"
    with pytest.raises(TypeError, match="Different replaces the forward pass"):
        describe(Different(config))


@pytest.mark.parametrize("replacement", [nn.Sigmoid(), nn.BatchNorm1d(2), nn.Softplus()])
def test_a_module_without_a_rule_is_refused_with_its_place(replacement):
    model = tiny.build("bert")
    model.bert.encoder.layer[1].intermediate.intermediate_act_fn = replacement
    with pytest.raises(TypeError, match=rf"layer\.1\.intermediate.*{type(replacement).__name__}"):
        describe(model)


def test_mpnets_biases_follow_the_given_positions():
    model, inputs = tiny.build("mpnet"), tiny.texts()
    architecture = describe(model)
    arguments, encoder = architecture.arguments(inputs), architecture.backbone.encoder
    plain = model(**arguments).logits
    positions = architecture.position_ids(inputs["input_ids"], inputs["attention_mask"])
    at_positions = architecture.kind.relative_positions
    for shift, same in ((0, True), (5, True), (positions, False)):
        with replaced({encoder: at_positions(encoder, positions + shift)}):
            found = model(**arguments).logits
        assert torch.allclose(found, plain, rtol=0, atol=1e-12) == same


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.TEXT_NAMES)
def test_the_models_own_positions_are_known(name):
    model, inputs = tiny.build(name), tiny.texts()
    arguments = describe(model).arguments(inputs)
    positions = describe(model).position_ids(inputs["input_ids"], inputs["attention_mask"])
    with torch.no_grad():
        own = model(**arguments).logits
        given = model(**arguments, position_ids=positions).logits
    if describe(model).language_model:
        own, given = (x[inputs["attention_mask"].bool()] for x in (own, given))
    assert torch.allclose(own, given, atol=1e-12)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_what_the_model_does_not_take_is_left_out(name):
    inputs = {**tiny.inputs_for(name), "offset_mapping": torch.zeros(3, 7, 2), "labels": None}
    tiny.build(name)(**describe(tiny.build(name)).arguments(inputs))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bert", {"input_ids": None}, "have `input_ids`"),
        ("bert", {"input_ids": torch.ones(7)}, "have `input_ids`"),
        ("vit", {"pixel_values": torch.ones(1, 8, 8)}, "needs 'pixel_values'"),
        ("bert", {"attention_mask": torch.ones(3, 2)}, "attention_mask has shape"),
        ("bert", {"attention_mask": torch.zeros(3, 7)}, "no tokens"),
        ("bert", tiny.texts((40,)), "40 tokens.*32 positions"),
        ("roberta", tiny.texts((31,)), "31 tokens.*30 positions"),
        ("bert", {"attention_mask": torch.tensor([[0] + [1] * 6] * 3)}, "padding_side = 'right'"),
    ],
)
def test_wrong_inputs_are_named(name, change, words):
    with pytest.raises(ValueError, match=words):
        describe(tiny.build(name)).arguments({**tiny.inputs_for(name), **change})


def test_a_decoder_that_cannot_find_the_end_of_its_texts_is_refused():
    inputs = tiny.texts()
    model = tiny.build("llama", pad_token_id=None)
    with pytest.raises(ValueError, match="pad_token_id"):
        describe(model).arguments(inputs)
    describe(model).arguments(tiny.row(inputs, 0))
    inputs["input_ids"][0, -1] = tiny.PAD
    with pytest.raises(ValueError, match="takes for padding"):
        describe(tiny.build("llama")).arguments(inputs)
