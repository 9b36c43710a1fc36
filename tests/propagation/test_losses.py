"""Which operation keeps relevance, and how much."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils.propagation.losses import ELSEWHERE, LOGIT, OPERATIONS, WORDS, losses
from tests import reference, tiny

WITH_BIASES = {"linear map", "norm"}


def size(relevance):
    return float(relevance.abs().max())


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_operation_is_accounted_for(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for method in ("attnlrp", "cp-lrp"):
        found = losses(model, inputs, method, target=1)
        scores = lrp.attribute(model, inputs, method, target=1)
        torch.testing.assert_close(found[WORDS].float(), scores.sum(1), rtol=1e-4, atol=1e-4)
        assert size(found[ELSEWHERE]) < 1e-9 * size(found[LOGIT]) + 1e-9


@pytest.mark.parametrize("name", tiny.NAMES)
def test_only_the_softmax_loses_without_biases(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for method, losing in (("attnlrp", {"softmax"}), ("cp-lrp", set())):
        found = losses(model, inputs, method, target=1, biases=False)
        assert {n for n in OPERATIONS if size(found[n]) > 1e-9} == losing


def test_biases_keep_a_share_in_maps_and_norms():
    found = losses(tiny.build("bert"), tiny.texts(), "cp-lrp", target=1)
    assert {n for n in OPERATIONS if size(found[n]) > 1e-9} == WITH_BIASES


def test_without_rules_everything_that_is_not_linear_loses():
    found = losses(tiny.build("bert"), tiny.texts(), "gradient", target=1, biases=False)
    assert {n for n in OPERATIONS if size(found[n]) > 1e-9} == set(OPERATIONS) - {"linear map"}


def test_the_softmaxs_loss_by_the_explicit_rules(monkeypatch):
    model, inputs = tiny.build("bert", num_hidden_layers=2), tiny.texts(lengths=(5,))
    kept, rule = [], reference.softmax

    def watched(scores, relevance):
        result = rule(scores, relevance)
        kept.append(relevance.sum() - result.sum())
        return result

    monkeypatch.setattr(reference, "softmax", watched)
    reference.bert(model, inputs["input_ids"][0], target=1)
    found = losses(model, inputs, "attnlrp", target=1)["softmax"]
    torch.testing.assert_close(found[0], sum(kept), rtol=1e-8, atol=1e-10)
