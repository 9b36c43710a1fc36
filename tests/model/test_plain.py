"""Models without rules: removal by their own forward pass equals plain torch, or is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma3TextForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

import lrputils as lrp
from lrputils.model.architectures import WITHOUT_RULES
from lrputils.model.inputs import Inputs
from tests import tiny

PAD, FIRST, LAST = 0, 2, 3
_SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "bos_token_id": FIRST,
    "eos_token_id": LAST,
    "num_labels": 3,
    "initializer_range": 0.4,
}
_GEMMA = {**_SIZES, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4}
_DEBERTA = {**_SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_DEBERTA |= {"type_vocab_size": 2, "position_buckets": 8}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 60}
_T5 |= {"num_labels": 3, "decoder_start_token_id": PAD, "initializer_factor": 8.0}
_MODERN = {**_SIZES, "global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": FIRST}
_MODERN |= {"sep_token_id": LAST, "initializer_cutoff_factor": 3.0}


class Quantised(nn.Module):
    """A linear layer that rounds what it takes on a scale which the whole batch decides."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        scale = x.detach().abs().mean() / 20
        return self.linear((x.detach() / scale).round() * scale)


def quantised():
    model = tiny.build("bert", dtype=torch.float32)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Quantised(module))
    return model


MODELS = {
    "modernbert": lambda: ModernBertForSequenceClassification(ModernBertConfig(**_MODERN)),
    "modernbert-mean": lambda: ModernBertForSequenceClassification(
        ModernBertConfig(**_MODERN, classifier_pooling="mean")
    ),
    "deberta": lambda: DebertaV2ForSequenceClassification(DebertaV2Config(**_DEBERTA)),
    "gemma3": lambda: Gemma3TextForSequenceClassification(Gemma3TextConfig(**_GEMMA)),
    "gemma3-lm": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**_GEMMA)),
}
UNMASKED = {
    "t5": lambda: T5ForSequenceClassification(T5Config(**_T5, eos_token_id=LAST)),
    "per-batch": quantised,
}


def built(name):
    torch.manual_seed(0)
    model = (MODELS | UNMASKED)[name]().eval()
    return model.requires_grad_(False)


def batch():
    rows = [[FIRST, 11, 12, 13, 14, 15, 16, LAST], [FIRST, 21, 22, 23, LAST]]
    width = max(map(len, rows))
    return Inputs(
        {
            "input_ids": [row + [PAD] * (width - len(row)) for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
            "special_tokens_mask": [
                [1, *[0] * (len(row) - 2), *[1] * (width - len(row) + 1)] for row in rows
            ],
        },
        replacements={"unk": 5},
    )


def by_hand(model, inputs, removal, where):
    """LOO, one plain forward pass a token; a text is a list of ids."""
    scores = torch.zeros(inputs["input_ids"].shape)
    for row, length in enumerate(inputs.lengths.tolist()):
        ids = inputs["input_ids"][row : row + 1, :length]

        def f(ids, **mask):
            logits = model(input_ids=ids, **mask).logits[0]
            return logits[-1] if logits.dim() == 2 else logits

        whole = f(ids)
        for i in where[row].nonzero().flatten().tolist():
            other, mask = ids.clone(), torch.ones_like(ids)
            if removal == "attention-mask":
                mask[0, i] = 0
            elif removal == "delete":
                other, mask = (x[:, torch.arange(length) != i] for x in (ids, mask))
            else:
                other[0, i] = 5
            scores[row, i] = (whole - f(other, attention_mask=mask))[whole.argmax()]
    return scores


@pytest.mark.parametrize("removal", ["attention-mask", "delete", "unk"])
@pytest.mark.parametrize("name", MODELS)
def test_loo_is_plain_torch(name, removal):
    model, inputs = built(name), batch()
    scores = lrp.leave_one_out(model, inputs, removal=removal)
    expected = by_hand(model, inputs, removal, inputs.valid_mask)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(scores, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_other_verbs(name):
    model, inputs = built(name), batch()
    loo = lrp.leave_one_out(model, inputs)
    close = {"atol": 2e-5, "rtol": 1e-4}
    torch.testing.assert_close(lrp.leave_two_out(model, inputs).loo, loo, **close)
    shapley = lrp.shapley_values(model, inputs, permutations="all")
    torch.testing.assert_close(shapley.scores.sum(1), shapley.change, **close)
    curves = lrp.perturbation_curves(model, inputs, loo)
    torch.testing.assert_close(curves.morf[0, 0] - curves.morf[0, 6], shapley.change[0], **close)
    for options in (
        {"method": "ig", "baseline": 30},
        {"method": "grad-x-input"},
        {"method": "loo", "removal": "zero"},
    ):
        assert lrp.attribute(model, inputs, **options).isfinite().all()


@pytest.mark.parametrize("name", UNMASKED)
def test_a_mask_that_does_not_remove_is_refused_and_deletion_is_exact(name):
    model, inputs = built(name), batch()
    with pytest.raises(ValueError, match=r"masking does not remove.* removal='delete'"):
        lrp.leave_one_out(model, inputs)
    with pytest.raises(ValueError, match="use what removes tokens"):
        lrp.attribute(model, inputs, "grad-x-input")
    scores = lrp.leave_one_out(model, inputs, removal="delete")
    if name == "t5":  # its answer is read at the end, which stays
        assert max(scores[0, 7].abs(), scores[1, 4].abs()) < 2e-5
        with pytest.raises(ValueError, match="reads its words twice: removal='zero'"):
            lrp.leave_one_out(model, inputs, removal="zero")
    inside = inputs.content_mask  # of T5 the end stays, by which it finds the text's
    expected = by_hand(model, inputs, "delete", inside)
    torch.testing.assert_close(scores[inside], expected[inside], atol=2e-5, rtol=1e-4)


def test_what_needs_rules_is_refused_by_name():
    model, inputs = built("modernbert"), batch()
    free = [name for name, method in lrp.METHODS.items() if not method.rules]
    assert all(f"'{name}'" in WITHOUT_RULES for name in free)
    for name in set(lrp.METHODS) - set(free):
        with pytest.raises(TypeError, match=r"ModernBert.* is not covered.*What needs no rules"):
            lrp.attribute(model, inputs, name)
    with pytest.raises(TypeError, match="What needs no rules works: leave_one_out"):
        lrp.check(model, inputs)
    with pytest.raises(ValueError, match=r"no read-out 'sum': use one of \['word'\]"):
        lrp.attribute(model, inputs, "grad-x-input", readout="sum")
