"""Uniform attention in place of a classifier's own, and the accuracy that it costs."""

from __future__ import annotations

import copy

import pytest
import torch

import lrputils as lrp
from lrputils.study import attention


def test_uniform_attention_is_that_of_queries_of_zero(placeholder):
    inputs = placeholder.encode(["a film that is never dull", "dull"])

    def logits(model):
        return model(**inputs.model_kwargs()).logits

    plain = logits(placeholder.model)
    with attention.uniform_attention(placeholder.model):
        changed = logits(placeholder.model)
    assert (changed - logits(placeholder.model)).abs().max() > 1e-3
    with attention.uniform_attention(placeholder.model, ()):
        torch.testing.assert_close(logits(placeholder.model), plain)
    one_by_one = []
    for layer in range(placeholder.architecture.layers):
        flat = copy.deepcopy(placeholder.model)
        flat.bert.encoder.layer[layer].attention.self.query.weight.zero_()
        flat.bert.encoder.layer[layer].attention.self.query.bias.zero_()
        with attention.uniform_attention(placeholder.model, {layer}):
            one_by_one.append(logits(placeholder.model))
        torch.testing.assert_close(one_by_one[-1], logits(flat), atol=1e-5, rtol=1e-5)
    assert (one_by_one[0] - one_by_one[-1]).abs().max() > 1e-4


def test_the_depths_of_a_network_are_told_apart(placeholder):
    texts = lrp.load_texts("reviews", limit=20)
    matters = attention.attention_matters(placeholder, texts)
    quarter = placeholder.architecture.layers // 4
    with attention.uniform_attention(placeholder.model, range(quarter)):
        right = attention.correct(placeholder, texts)
    expected = matters["accuracy"].value - right.mean()
    assert matters[f"layers 1 to {quarter}"].value == pytest.approx(expected)
