"""A language model as a classifier: its own logits of some tokens behind a prompt."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from tests import languages

TEMPLATE = "Text: {text}\nIs it A or B?"
TEXTS = ["the end", "A dog, is it?"]


@pytest.mark.parametrize("name", ["llama-lm", "gpt2-lm"])
def test_logits_and_maps_are_the_language_models_own(name):
    lm = languages.load(name)
    clf = lm.zero_shot(TEMPLATE, ["A", "B"])
    inputs, whole = clf.encode(TEXTS), lm.encode([TEMPLATE.replace("{text}", t) for t in TEXTS])
    ids = lm.tokenizer.convert_tokens_to_ids(["A", "B"])
    assert torch.equal(inputs["input_ids"], whole["input_ids"])
    assert clf.labels == ("A", "B")
    assert inputs.units("message").texts == tuple((text,) for text in TEXTS)
    ours = clf.model(**inputs.model_kwargs()).logits
    ends = inputs.lengths - 1
    theirs = lm.model(**whole.model_kwargs()).logits[torch.arange(2), ends][:, ids]
    torch.testing.assert_close(ours, theirs)
    for method in ("loo", "attnlrp"):
        ours = lrp.attribute(clf, inputs, method, target=lrp.contrast("A", "B"))
        theirs = lrp.attribute(lm, whole, method, target=lrp.contrast(*ids))
        torch.testing.assert_close(ours, theirs)
        assert ours.abs().max() > 1e-3
    shared = lm.architecture.word_embeddings.weight.data_ptr()
    assert clf.architecture.word_embeddings.weight.data_ptr() == shared


def test_it_is_taken_where_a_classifier_is():
    clf = languages.load().zero_shot(TEMPLATE, ["A", "B"])
    rows = lrp.evaluate(clf, TEXTS, ["attnlrp"], progress=False).rows
    assert set(rows.id) == {"0", "1"}
    shown = lrp.explain(clf, TEXTS[0])
    assert shown.answer[0] in ("A", "B")
    own = [word.text for place, word in enumerate(shown.words) if place not in shown.special]
    assert own == ["the", "␣", "end"]
    other = languages.load().zero_shot("{text} is", ["A", "B"])
    assert clf.parts != other.parts
    assert {**clf.parts, "template": other.template} == other.parts


@pytest.mark.parametrize(
    ("template", "labels", "sentence"),
    [
        ("Is it?", ["A", "B"], "has {text} once"),
        (TEMPLATE, ["A"], "two different tokens"),
        (TEMPLATE, ["A", "A"], "two different tokens"),
        (TEMPLATE, ["A", "dog"], r"\['dog'\] are not"),
    ],
)
def test_what_makes_no_classifier_is_refused(template, labels, sentence):
    with pytest.raises(ValueError, match=sentence):
        languages.load().zero_shot(template, labels)


def test_what_a_template_does_not_take_is_refused():
    clf = languages.load().zero_shot(TEMPLATE, ["A", "B"])
    for texts, sentence in ((["a." * 200], "never cut"), ([("a", "b")], "these are pairs")):
        with pytest.raises(ValueError, match=sentence):
            clf.encode(texts)
    with pytest.raises(ValueError, match="is a classifier already"):
        clf.zero_shot(TEMPLATE, ["A", "B"])
