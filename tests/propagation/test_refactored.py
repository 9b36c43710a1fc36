"""The same attention in other forms: the function stays, and each form has the rules it claims."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils.model.readout import read
from lrputils.propagation import refactored as rf
from lrputils.propagation.conservation import without_biases
from tests import reference, tiny

SAME = list(rf.FORMS.values())[:6]


def relevance(model, inputs, form, rule="attnlrp"):
    with rf.refactored(model, form, rf.BLOCK_RULES[rule]) as architecture:
        reading = read(architecture, inputs, target=1)
        return reading.relevance(reading.gradient()), reading.output.detach()


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["bert", "mpnet", "distilbert", "llama", "gpt2", "vit"])
def test_the_function_and_what_depends_on_it_alone_stay(name, form):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for rule in ("gradient", "cp-lrp"):
        kept, plain = relevance(model, inputs, rf.standard, rule)
        scores, logits = relevance(model, inputs, form, rule)
        torch.testing.assert_close(logits, plain, rtol=0, atol=1e-10)
        torch.testing.assert_close(scores, kept, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "mpnet", "llama"])
def test_the_standard_form_is_what_the_package_propagates(name):
    model, inputs = tiny.build(name), tiny.texts()
    for method in ("attnlrp", "cp-lrp"):
        expected = lrp.attribute(model, inputs, method, target=1)
        scores, _ = relevance(model, inputs, rf.standard, method)
        torch.testing.assert_close(scores.float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
def test_which_forms_change_attnlrp(form):
    model, inputs = tiny.build("bert"), tiny.texts()
    kept, _ = relevance(model, inputs, rf.standard)
    scores, _ = relevance(model, inputs, form)
    moved = float((scores - kept).abs().max())
    assert (moved < 1e-9) == (form in SAME)
    assert moved < 1e-9 or moved > 1e-3


def test_without_a_query_bias_nothing_is_multiplied_out():
    model, inputs = without_biases(tiny.build("bert")), tiny.texts()
    kept, _ = relevance(model, inputs, rf.standard)
    scores, _ = relevance(model, inputs, rf._query_bias_apart)
    torch.testing.assert_close(scores, kept)


def test_a_gate_of_one_changes_nothing_and_a_small_one_removes():
    model, inputs = tiny.build("bert"), tiny.texts(lengths=(6,))
    without = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    without["attention_mask"][0, 2] = 0
    for form in rf.FORMS.values():
        gate = torch.ones(1, 6, dtype=torch.float64)
        gate[0, 2] = 1e-14
        with rf.refactored(model, form, gate=gate) as architecture:
            gated = read(architecture, inputs, target=1).output
        plain = read(lrp.describe(model), without, target=1).output
        torch.testing.assert_close(gated, plain, rtol=0, atol=1e-8)


class Slow(reference._Layer):
    """One block's attention taken through explicit rules, for two forms that change the answer."""

    form = "normalised last"

    def through_attention(self, relevance, rule, eps):
        of_q, of_k, of_v = (torch.zeros_like(self.q) for _ in range(3))
        for c in self.columns:
            scores, value = self.scores(c), self.v[:, c]
            if self.form == "normalised last":
                of_scores, of_v[:, c] = self.normalised_last(scores, value, relevance[:, c])
            else:
                of_scores, of_v[:, c] = self.own_apart(scores, value, relevance[:, c])
            of_q[:, c], of_keys = reference.product(
                self.scale * self.q[:, c], self.k[:, c].T, of_scores, eps
            )
            of_k[:, c] = of_keys.T
        maps = self.block.attention.self
        pairs = ((maps.value, of_v), (maps.query, of_q), (maps.key, of_k))
        return sum(reference._back(linear, self.x, part, eps) for linear, part in pairs)

    @staticmethod
    def normalised_last(scores, value, relevance):
        exponentials = torch.exp(scores)
        of_mixed = relevance / 2  # output = mixed · (1 / s), elementwise: half to each factor
        of_reciprocal = (relevance / 2).sum(1)
        of_exp, of_value = reference.product(exponentials, value, of_mixed, 0.0)
        of_sum = -of_reciprocal  # Taylor rule of 1 / s: s · d(1/s)/ds = −1/s
        shares = exponentials / exponentials.sum(1, keepdim=True)
        of_exp = of_exp + shares * of_sum[:, None]  # s = Σ exp(Z), linear
        return scores * of_exp, of_value  # Taylor rule of exp: Z · exp(Z) · R(exp) / exp

    @staticmethod
    def own_apart(scores, value, relevance):
        weights = torch.softmax(scores, 1)
        others = (weights - torch.eye(len(weights), dtype=weights.dtype)) @ value
        of_own, of_others = reference.residual(value, others, relevance, 0.0)
        difference = weights - torch.eye(len(weights), dtype=weights.dtype)
        of_difference, of_value = reference.product(difference, value, of_others, 0.0)
        # A − I is linear in A, and the constant keeps its share.
        of_weights = weights / difference * of_difference
        return reference.softmax(scores, of_weights), of_own + of_value


@pytest.mark.parametrize(
    ("name", "form"),
    [("normalised last", rf._normalised_last), ("own value apart", rf._own_value_apart)],
)
def test_two_forms_against_explicit_rules(monkeypatch, name, form):
    model, inputs = tiny.build("bert", num_hidden_layers=2), tiny.texts(lengths=(5,))
    monkeypatch.setattr(Slow, "form", name)
    monkeypatch.setattr(reference, "_Layer", Slow)
    _, slow = reference.bert(model, inputs["input_ids"][0], target=1)
    fast, _ = relevance(model, inputs, form)
    torch.testing.assert_close(fast[0], slow, rtol=1e-8, atol=1e-10)
