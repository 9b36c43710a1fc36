"""What is refused of models, texts, chats, functions and targets, and the sentence that says so."""

import re

import pandas as pd
import pytest
import torch
from torch import nn

import lrputils as lrp
from lrputils.model import chats
from lrputils.model.classifier import EMBEDDED, load_classifier
from lrputils.model.inputs import Inputs, encode
from tests import tiny

TOKENIZER = tiny.classifier(layers=1).tokenizer
TABLE = pd.DataFrame({"premise": ["A good film."], "hypothesis": ["Bad"], "label": [0]})
CHAT = [
    {"role": "system", "content": "user"},  # a word of the template too
    {"role": "user", "content": "Is it the end? No."},
]
MUTE = tiny.TEMPLATE.replace(
    "{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}"
)
SHOUTING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content | upper }}")
THINKING = tiny.TEMPLATE.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
LOOPING = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set t = namespace(a='ab') %}{% for i in range(99) %}{% set t.a = t.a ~ t.a %}"
    "{% endfor %}{{ t.a }}",
)
ASKED = "Text: {text}\nIs it A or B?"


def arguments(name: str, **change: object):
    return lrp.describe(tiny.build(name)).arguments({**tiny.inputs_for(name), **change})


def ending_in_padding():
    ids = tiny.texts()["input_ids"]
    ids[0, -1] = tiny.PAD
    return arguments("llama", input_ids=ids)


def adapted(model):
    """As `peft.get_peft_model` wraps a model; PEFT itself is not needed for its name."""
    kind = type(
        "PeftModelForSequenceClassification", (nn.Module,), {"__module__": "peft.peft_model"}
    )
    wrapper = kind()
    wrapper.base_model = model
    return wrapper


def injected(model):
    kind = type("Linear", (nn.Module,), {"__module__": "peft.tuners.lora.layer"})
    model.bert.encoder.layer[0].attention.self.query = kind()
    return model


def held(wrap):
    return lambda: lrp.describe(wrap(tiny.build("bert")))


MODELS = {
    "no ids": (lambda: arguments("bert", input_ids=None), "have `input_ids`"),
    "flat ids": (lambda: arguments("bert", input_ids=torch.ones(7)), "have `input_ids`"),
    "flat image": (
        lambda: arguments("vit", pixel_values=torch.ones(1, 8, 8)),
        "needs 'pixel_values'",
    ),
    "another mask": (
        lambda: arguments("bert", attention_mask=torch.ones(3, 2)),
        "attention_mask has shape",
    ),
    "no tokens": (lambda: arguments("bert", attention_mask=torch.zeros(3, 7)), "no tokens"),
    "too long": (lambda: arguments("bert", **tiny.texts((40,))), "40 tokens.*32 positions"),
    "RoBERTa": (lambda: arguments("roberta", **tiny.texts((31,))), "31 tokens.*30 positions"),
    "on the left": (
        lambda: arguments("bert", attention_mask=torch.tensor([[0] + [1] * 6] * 3)),
        "padding_side = 'right'",
    ),
    "a hole": (
        lambda: arguments("bert", attention_mask=torch.tensor([[1, 1, 0, 1, 1, 1, 1]] * 3)),
        r"the attention mask of rows \[0, 1, 2\] has a hole",
    ),
    "no padding": (
        lambda: lrp.describe(tiny.build("llama", pad_token_id=None)).arguments(tiny.texts()),
        "pad_token_id",
    ),
    "padding at the end": (ending_in_padding, "takes for padding"),
    "adapter": (held(adapted), r"adapter.*merge_and_unload\(\)"),
    "compiled": (held(lambda m: torch.compile(adapted(m))), r"adapter.*merge_and_unload\(\)"),
    "injected": (
        held(injected),
        r"adapter at 'bert.encoder.layer.0.*merge_and_unload\(\)",
    ),
    "a name": (held(lambda _: "minilm"), "'minilm' is the name of a model: pass load_classifier"),
    "modules": (held(nn.Sequential), "Sequential is not a transformers model: pass that which it"),
    "a dict": (held(lambda model: {"model": model}), "dict is not a transformers model"),
    "held": (held(lambda m: lrp.Classifier(adapted(m), None, "tiny")), "merge_and_unload"),
    "dtype": (lambda: load_classifier(EMBEDDED, dtype="float8"), "dtype='float8' is not one of"),
    "device": (lambda: load_classifier(EMBEDDED, device="gpu"), "device='gpu' cannot be used"),
    "revision": (
        lambda: load_classifier(EMBEDDED, revision="v2"),
        "revision='v2' belongs to the hub",
    ),
    "revision of our own": (
        lambda: load_classifier(revision="x"),
        "revision='x' belongs to the hub",
    ),
    "no folder": (lambda: load_classifier("./nothing"), r"model='\./nothing'"),
    "no tokenizer": (
        lambda: load_classifier(tiny.build("bert")),
        "BertForSequenceClassification comes without its token",
    ),
    "no model": (lambda: load_classifier({}), "got a dict"),
}


def asked(function, **options):
    return lambda: lrp.load_classifier(function=function, **options)


def even(texts):
    return [[0.5, 0.5]] * len(texts)


def by_function(method: str):
    clf = lrp.load_classifier(function=even)
    return lrp.attribute(clf, clf.encode(["a film"]), method)


FUNCTIONS = {
    "numbers": (asked(lambda texts: [0.5] * len(texts)), r"returns \(2,\) for 2 texts"),
    "negative": (asked(lambda texts: [[2.0, -1.0]] * len(texts)), "sum to 1"),
    "too little": (asked(lambda texts: [[0.2, 0.2]] * len(texts)), "with sums from 0.4 to 0.4"),
    "too few": (asked(lambda _: [[0.5, 0.5]]), r"returns \(1, 2\) for 2 texts"),
    "labels": (asked(even, labels=["one"]), "the function has 2 classes"),
    "pairs": (lambda: asked(even)().encode([("one", "two")]), "join the two of a pair"),
    "layers": (
        lambda: by_function("attnlrp"),
        "a function of texts has no gradients and no layers",
    ),
    "attention": (lambda: by_function("mask-gradient"), "a function of texts has no gradients and"),
    "gradients": (
        lambda: by_function("ig"),
        "passes no gradient back to its words: use what remov",
    ),
    "no words": (
        lambda: load_classifier(nn.Linear(2, 2), TOKENIZER),
        "Linear is not a transformers model, and has no embeddings of",
    ),
    "no classes": (
        lambda: load_classifier(nn.Sequential(nn.Embedding(10_000, 4)), TOKENIZER),
        "does not run as one, module",
    ),
}


def said(answer, texts=CHAT, template=tiny.TEMPLATE):
    return lambda: tiny.language_model(template=template).encode(texts, answer=answer)


def without_answer_mask():
    clf = tiny.language_model()
    inputs = clf.encode("A dog", answer=" is")
    inputs["answer_mask"] = torch.zeros_like(inputs["answer_mask"])
    return lrp.attribute(clf, inputs, "attnlrp")


def of_answer(answer=" is", **options):
    clf = tiny.language_model()
    return lrp.leave_one_out(clf, clf.encode("A dog", answer=answer), **options)


CHATS = {
    "blank answer": (said(" "), "the answer to text 0 is ' ': write one"),
    "one answer": (said(["a"], ["a", "b"]), "1 answers to 2 texts"),
    "pairs": (said("a", [("a", "b")]), "these are pairs"),
    "half a token": (said("he", "Is this t"), "does not begin with a token of its own"),
    "too long": (said("a", "a." * 200), "tokens with its template or answer, and 128 is"),
    "a role": (said("a", [{"role": "tool", "content": "a"}]), "roles tool: no such role"),
    "left out": (
        said("a", template=MUTE),
        "leaves out, repeats or moves message 0, of the role 'system'",
    ),
    "rewritten": (said("a", template=SHOUTING), "rewrites what the messages say"),
    "cut": (said("Hm.</think>No", CHAT[1:], THINKING), "cuts the answer 'Hm.</think>No'"),
    "no template": (said("a", template=None), "no chat template"),
    "an image": (said("a", [{"role": "user", "content": [{"type": "image"}]}]), "images"),
    "nothing": (said("a", [{"role": "user", "content": " "}]), "says nothing"),
    "blank": (said("a", " "), "says nothing"),
    "loops": (
        said(None, CHAT[1:], tiny.TEMPLATE + LOOPING[0]),
        "roles user: it takes more than ",
    ),
    "doubles": (
        said(None, CHAT[1:], tiny.TEMPLATE + LOOPING[1]),
        "roles user: it takes more than ",
    ),
    "a class": (lambda: of_answer(target=3), "target=3 is none of"),
    "an output": (lambda: of_answer(output="difference"), "none of .*log-probability"),
    "no answer": (
        lambda: of_answer(None, per_token=True),
        "per_token=True is of an answer",
    ),
    "no answer's tokens": (without_answer_mask, "each text of a batch with answers has one"),
    "an answer to a classifier": (
        lambda: tiny.classifier().encode("a film", answer="good"),
        "BertForSequenceClassification is no language model",
    ),
    "a chat to a classifier": (
        lambda: tiny.classifier().encode(CHAT),
        "BertForSequenceClassification is no language model",
    ),
}


def classes(template=ASKED, labels=("A", "B")):
    return tiny.language_model().zero_shot(template, labels)


TEMPLATES = {
    "no text": (
        lambda: classes("x {txt}"),
        "'x {txt}' must contain {text} exactly once, where the text goes",
    ),
    "one label": (lambda: classes(labels=["A"]), "two different tokens"),
    "a label twice": (lambda: classes(labels=["A", "A"]), "two different tokens"),
    "no blank": (
        lambda: classes("It is {text}. So", ["a", " the"]),
        "'a' would follow the prompt without a blank, which is another token: write ' a'",
    ),
    "a long label": (lambda: classes(labels=["A", "dog"]), r"\['dog'\] are not"),
    "too long": (lambda: classes().encode(["a." * 200]), "128 is the most"),
    "a pair": (lambda: classes().encode([("a", "b")]), "these are pairs"),
    "twice": (lambda: classes().zero_shot(ASKED, ["A", "B"]), "is a classifier already"),
}


def encoded(texts, **options):
    return lambda: encode(TOKENIZER, texts, **options)


TEXTS = {
    "too long": (
        encoded(["short", "word " * 600]),
        "Text 1 .* has 602 tokens, more than max_length=512",
    ),
    "positions": (
        encoded("word " * 30, positions=20),
        r"max_length=20 \(the model has 20 positions\)",
    ),
    "no room": (encoded("word", max_length=2), "adds 2 special tokens"),
    "no room for two": (
        encoded([("a", "b")], max_length=4),
        r"adds 3 special tokens\. Ask for at least 5",
    ),
    "blank": (encoded(["fine", "   ", ""]), "Text 1 has no token of its own"),
    "half a pair": (
        encoded([("Bad", " ")]),
        r"Text 0 has no token of its own .*\('Bad', ' '\)",
    ),
    "a text among pairs": (
        encoded([("a", "b"), "Bad"]),
        "Text 1 is one text, and text 0 is not: encode single",
    ),
    "no rows": (lambda: encoded("a")().rows(slice(4, 9)), "none of the 1 rows"),
    "special?": (
        lambda: Inputs.of(TOKENIZER(["a"], return_tensors="pt")).content_mask,
        "which tokens are special",
    ),
    "three columns": (
        lambda: lrp.load_texts(TABLE, text_column="premise,hypothesis,label"),
        "a text has one column, a pair two",
    ),
    "no column": (
        lambda: lrp.load_texts(TABLE, "premise,hypotheses,label"),
        "no column 'hypotheses': choose text_column",
    ),
}


def explained(target, name="bert", names=("good", "bad", "other"), problem=None, **options):
    def explain():
        model = tiny.build(name)
        model.config.id2label = dict(enumerate(names))
        model.config.problem_type = problem
        return lrp.leave_one_out(model, tiny.texts((5,)), target=target, **options)

    return explain


BAD_TWICE = "good", "bad", "bad"
TARGETS = {
    "a label": (explained("worse"), "'worse' is none of good, bad, other"),
    "a class": (explained(lrp.contrast("good", 7)), "out of range"),
    "a lead of a lead": (
        explained(lrp.contrast(0, 1), output="difference"),
        "a difference already",
    ),
    "itself": (lambda: lrp.contrast("good", "good"), "compares a class with itself"),
    "two of a name": (explained("bad", names=BAD_TWICE), "'bad' names 2 of the classes good, bad,"),
    "in capitals": (explained("BAD", names=BAD_TWICE), "'BAD' names 2 of the classes good, bad,"),
    "in a list": (explained(["bad"], names=BAD_TWICE), "'bad' names 2 of the classes good, bad,"),
    "a score": (
        explained(None, problem="regression"),
        "gives 3 scores and predicts none of them: choose one by",
    ),
    "its probability": (
        explained("bad", problem="regression", output="probability"),
        "3 scores without a probability",
    ),
    "of one logit": (
        lambda: lrp.leave_one_out(
            tiny.build("bert", num_labels=1), tiny.texts(), output="probability"
        ),
        "a score without a probability",
    ),
    "two tokens": (
        explained(torch.tensor([[5, 6]]), "gpt2-lm"),
        r"target has shape \(1, 2\): pass one class",
    ),
    "no token": (
        explained("LABEL_1", "gpt2-lm"),
        "'LABEL_1' is none of the tokens: give its number",
    ),
}

ALL = {
    f"{kind}: {name}": case
    for kind, cases in {
        "model": MODELS,
        "function": FUNCTIONS,
        "chat": CHATS,
        "template": TEMPLATES,
        "text": TEXTS,
        "target": TARGETS,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.filterwarnings("ignore:this tokenizer puts no token")
@pytest.mark.parametrize("name", ALL)
def test_one_sentence_says_what_is_wrong(name, monkeypatch):
    monkeypatch.setattr(chats, "_SECONDS", 0.5)
    do, sentence = ALL[name]
    with pytest.raises((TypeError, ValueError, FileNotFoundError)) as caught:
        do()
    assert re.search(sentence, str(caught.value))
    assert "\n" not in str(caught.value)
