"""Chats and answers: laid out by the template, found again by characters, wrong ones refused."""

import pytest
import torch

import lrputils as lrp
from lrputils.model import chats
from tests import tiny

CHAT = [
    {"role": "system", "content": "user"},  # a word of the template too
    {"role": "user", "content": "Is it the end? No."},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "user\nWhy"},
]
TRIMMING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}")
MUTE = tiny.TEMPLATE.replace(
    "{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}"
)
SHOUTING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content | upper }}")
THINKING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")


def test_a_chat_is_what_the_tokenizers_own_template_makes_of_it():
    clf = tiny.language_model()
    inputs = clf.encode([CHAT, CHAT[1:2]], answer=[" the end", "No"])
    for row, (chat, answer) in enumerate([(CHAT, " the end"), (CHAT[1:2], "No")]):
        prompt = clf.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        said = clf.tokenizer(answer)["input_ids"]
        own = inputs.valid_mask[row]
        assert inputs["input_ids"][row, own].tolist() == prompt + said
        assert inputs["answer_mask"][row, own].tolist() == [0] * len(prompt) + [1] * len(said)
    found = inputs.units("message").texts
    assert found[0] == tuple(message["content"] for message in CHAT)
    assert inputs.units("sentence").texts[1] == ("Is it the end?", "No.")
    content = [t for t, own in zip(inputs.tokens[0], inputs.content_mask[0], strict=False) if own]
    said = clf.tokenizer.convert_tokens_to_string(content)
    assert said == "".join(message["content"] for message in CHAT)
    alone = clf.encode(CHAT)
    assert "answer_mask" not in alone
    assert alone["input_ids"][0].tolist() == inputs["input_ids"][0, : alone.lengths[0]].tolist()


def test_messages_that_a_template_trims_are_found():
    clf = tiny.language_model(template=TRIMMING)
    inputs = clf.encode([{"role": "user", "content": "  Is it?\n"}], answer="No")
    assert inputs.units("message").texts == (("Is it?",),)


@pytest.mark.parametrize(
    ("template", "texts", "answer", "sentence"),
    [
        (tiny.TEMPLATE, CHAT, " ", "the answer to text 0 is ' ': write one"),
        (tiny.TEMPLATE, ["a", "b"], ["a"], "1 answers to 2 texts"),
        (tiny.TEMPLATE, [("a", "b")], "a", "these are pairs"),
        (tiny.TEMPLATE, "Is this t", "he", "does not begin with a token of its own"),
        (tiny.TEMPLATE, "a." * 200, "a", "tokens with its template or answer, and 128 is"),
        (tiny.TEMPLATE, [{"role": "tool", "content": "a"}], "a", "roles tool: no such role"),
        (MUTE, CHAT, "a", "leaves out, repeats or moves message 0, of the role 'system'"),
        (SHOUTING, CHAT, "a", "rewrites what the messages say"),
        (THINKING, CHAT[1:2], "Hm.</think>No", "cuts the answer 'Hm.</think>No'"),
        (None, CHAT, "a", "no chat template"),
        (tiny.TEMPLATE, [{"role": "user", "content": [{"type": "image"}]}], "a", "images"),
        (tiny.TEMPLATE, [{"role": "user", "content": " "}], "a", "says nothing"),
        (tiny.TEMPLATE, " ", "a", "says nothing"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_in_a_sentence(template, texts, answer, sentence):
    with pytest.raises(ValueError, match=sentence):
        tiny.language_model(template=template).encode(texts, answer=answer)


@pytest.mark.parametrize(
    "endless",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set t = namespace(a='ab') %}{% for i in range(99) %}{% set t.a = t.a ~ t.a %}"
        "{% endfor %}{{ t.a }}",
    ],
)
def test_a_template_that_loops_or_doubles_is_refused_in_a_sentence(endless, monkeypatch):
    monkeypatch.setattr(chats, "_SECONDS", 0.5)
    clf = tiny.language_model(template=tiny.TEMPLATE + endless)
    with pytest.raises(ValueError, match="roles user: it takes more than "):
        clf.encode(CHAT[1:2])


def test_what_cannot_be_explained_is_refused_in_a_sentence(classifier):
    for given, answer in (("a film", "good"), (CHAT, None)):
        with pytest.raises(ValueError, match="BertForSequenceClassification is no language model"):
            classifier.encode(given, answer=answer)
    clf = tiny.language_model()
    inputs = clf.encode("A dog", answer=" is")
    for options, sentence in (
        ({"target": 3}, "target=3 is none of"),
        ({"output": "difference"}, r"none of .*log-probability"),
    ):
        with pytest.raises(ValueError, match=sentence):
            lrp.leave_one_out(clf, inputs, **options)
    with pytest.raises(ValueError, match="per_token=True is of an answer"):
        lrp.leave_one_out(clf, clf.encode("A dog"), per_token=True)
    inputs["answer_mask"] = torch.zeros_like(inputs["answer_mask"])
    with pytest.raises(ValueError, match="each text of a batch with answers has one"):
        lrp.attribute(clf, inputs, "attnlrp")
