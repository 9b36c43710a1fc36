"""The same attention in other forms: the function stays, and each form has the rules it claims."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils.model.readout import read
from lrputils.propagation import refactored as rf
from tests import tiny

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
