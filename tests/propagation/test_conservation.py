"""The check that users run on their own model."""

import pytest
import torch
from torch import nn

import lrputils as lrp
from tests import tiny


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_covered_model_passes(name):
    model = tiny.build(name, dtype=torch.float32)
    report = lrp.check(model)
    assert report.passed
    assert max(report.words, *report.gaps) < 1e-5
    assert report.logit_change <= 1e-6
    assert report.attnlrp_gap > 1e-3
    assert type(model).__name__ in str(report)


def test_the_report_says_where_relevance_is_lost():
    wrong = lrp.CP_LRP.but(layers={1}, norm="gradient")
    report = lrp.check(tiny.build("bert"), tiny.texts(), target=[0, 1, 2], composite=wrong)
    assert not report.passed
    assert report.gaps[2] < lrp.check(tiny.build("bert")).tolerance < report.gaps[1]
    lines = str(report).splitlines()
    assert "not conserved" in next(line for line in lines if "layer   1" in line)
    assert "not conserved" not in next(line for line in lines if "layer   2" in line)


def test_a_head_of_the_users_own_made_of_known_parts():
    model = tiny.build("bert", dtype=torch.float32)
    model.classifier = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    assert lrp.check(model).passed
    model.classifier[1] = nn.Sigmoid().eval()
    assert not lrp.check(model).passed
    with pytest.raises(TypeError, match=r"loses or makes.*sigmoid"):
        lrp.attribute(model, tiny.texts(), "attnlrp")


_SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZE |= {"intermediate_size": 48, "pad_token_id": 0, "initializer_range": 0.3}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
_DEEPSEEK = {"v_head_dim": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 16}
_CAPPED = {"num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 5.0}
_BART = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.3}
_BART |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
_BART |= {"vocab_size": 40, "pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
HARD = {
    "keys written into a view, a router's sigmoids by their sum in place": lambda: tiny.made(
        "DeepseekV3", **_SIZE | _LATENT | _EXPERTS | _DEEPSEEK
    ),
    "an activation after the head": lambda: tiny.made("Gemma2", "ForCausalLM", **_SIZE | _CAPPED),
    "an encoder and a decoder, both of the words": lambda: tiny.made("Bart", **_BART),
}


@pytest.mark.parametrize("name", HARD)
def test_what_is_right_passes(name):
    report = lrp.check(HARD[name]())
    assert report.passed
    assert report.attnlrp_gap > 1e-4


def test_states_with_tokens_first_are_read_at_the_words():
    tokenizer = tiny.classifier(layers=1).tokenizer
    clf = lrp.load_classifier(tiny.Reader(len(tokenizer)).eval(), tokenizer)
    report = lrp.check(clf, {"input_ids": torch.arange(4, 12)[None]})
    assert report.passed
    assert (report.layers, report.gaps, report.readouts) == (2, (), ("word",))
