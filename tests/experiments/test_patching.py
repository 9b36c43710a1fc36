"""Patches and their linear estimates, against a forward pass written by hand."""

import numpy as np
import pytest
import torch

import lrputils as lrp
from experiments.recordings import patching
from lrputils.model.proof import laid_out


@pytest.fixture(scope="module")
def classifier():
    return lrp.load_classifier(dtype="float64")


@pytest.fixture(scope="module")
def rows(classifier):
    return patching.measure(classifier, lrp.load_texts(limit=2, seed=0), patches=4)


def by_hand(classifier, text, row):
    """The logits of one text with one component replaced, by hooks on this BERT's modules."""
    model, inputs = classifier.model, classifier.encode([text])
    ids = torch.where(inputs.content_mask, inputs.replacements["mask"], inputs["input_ids"])
    block = model.bert.encoder.layer[row.layer]
    module = {
        "state": block,
        "attention": block.attention.output.dense,
        "feed-forward": block.output.dense,
    }[row.site]
    before, held = row.site != "feed-forward", {}

    def logits(ids, hook):
        place = module.register_forward_pre_hook if before else module.register_forward_hook
        handle = place(hook)
        with torch.no_grad():
            found = model(**{**classifier.architecture.arguments(inputs), "input_ids": ids}).logits
        handle.remove()
        return found[0]

    def keep(_, args, *output):
        held["masked"] = (args[0] if before else output[0]).clone()

    def change(_, args, *output):
        value = (args[0] if before else output[0]).clone()
        value[0, row.token] = 0 if row.source == "zero" else held["masked"][0, row.token]
        return (value, *args[1:]) if before else value

    logits(ids, keep)
    whole = classifier.model(**classifier.architecture.arguments(inputs)).logits[0]
    target = int(whole.argmax())
    return float((whole - logits(inputs["input_ids"], change))[target].detach())


def test_effects_are_those_of_replacing_the_component(classifier, rows):
    texts = lrp.load_texts(limit=2, seed=0)
    assert len(rows) == 2 * 4 * len(patching.SITES) * len(patching.SOURCES)
    for row in rows.groupby(["source", "site"]).head(2).itertuples():
        text = texts[texts.ids.index(row.id)]
        assert row.effect == pytest.approx(by_hand(classifier, text, row), abs=1e-9)


def test_estimates_are_first_order(classifier, rows):
    """In the head's linear part a patch is its estimate: relevance at a state is its zero patch."""
    text = lrp.load_texts(limit=2, seed=0)[0]
    inputs = classifier.encode([text])
    plan = [patching._Patch("state", 0, t) for t in range(inputs["input_ids"].shape[1])]
    part = patching._text(laid_out(classifier), inputs, plan)
    zero = part[part.source == "zero"]
    for name in ("attnlrp", "cp-lrp"):
        expected = lrp.attribute(classifier, inputs, name, readout="post-norm")[0]
        np.testing.assert_allclose(zero[name], expected, rtol=1e-4, atol=1e-5)
    expected = lrp.attribute(classifier, inputs, "grad-x-input", readout="post-norm")[0]
    np.testing.assert_allclose(zero["gradient"], expected, rtol=1e-4, atol=1e-5)
