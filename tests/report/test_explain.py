"""One call: its numbers are those of the methods, its sentence that of a slow count, its files."""

import dataclasses
import io
import itertools
import re
import unicodedata
import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import lrputils as lrp
from lrputils.model.units import Word
from lrputils.report import explain as explaining
from lrputils.report.explain import tracking
from lrputils.report.heatmap import Heatmap
from lrputils.report.words import visible
from tests import tiny

TEXT = "Not a chapter passes, it didn't."
HOSTILE = (
    "<script>alert(1)</script>\"&'><i> \x1b]0;own\x07 $x_1$ \u202eoverride \u200bzero 電影 😀 \\n"
)


def test_the_maps_are_the_methods_own(classifier):
    shown = lrp.explain(classifier, TEXT, "attnlrp:readout=sum,loo")
    inputs = classifier.encode(TEXT)
    name = "AttnLRP, readout=sum"
    assert list(shown.maps) == [name, "LOO"]
    expected = lrp.attribute(classifier, inputs, "attnlrp", readout="sum")[0]
    np.testing.assert_allclose(shown.maps[name], expected, atol=1e-6)
    np.testing.assert_allclose(shown.maps["LOO"], lrp.leave_one_out(classifier, inputs)[0])


def test_a_prompt_and_a_page_say_what_was_explained_by_what(classifier, tmp_path):
    shown = lrp.explain(classifier, TEXT, "AttnLRP")
    assert repr(shown) == str(shown)
    hub = dataclasses.replace(classifier, name="owner/<name>", revision="abc123")
    page = lrp.explain(hub, TEXT, "attnlrp").save(tmp_path / "x.html").read_text(encoding="utf-8")
    told = f"Model owner/&lt;name&gt;, revision abc123; lrputils {lrp.__version__}</small>"
    assert page.count(told) == 1


def test_several_texts_are_explained_each_by_itself(classifier, tmp_path):
    texts = [TEXT, "a film that is never dull"]
    shown = lrp.explain(classifier, texts, "Loo,AttnLRP")
    alone = [lrp.explain(classifier, text, "loo,attnlrp") for text in texts]
    assert repr(shown) == "\n\n".join(map(str, alone))
    frame = shown.to_frame(pieces=True)
    for number, one in enumerate(alone):
        rows = frame[frame.text == number].reset_index(drop=True)
        assert rows[[*one.to_frame(pieces=True)]].equals(one.to_frame(pieces=True))
        (answer,) = {*zip(rows["class"], rows.probability, strict=True)}
        assert one.caption == f"Predicted: {answer[0]}, probability {answer[1]:.2f}"
    page = shown.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.count('<div class="lrp-heatmap">') == shown._repr_html_().count("<details>") == 2
    with pytest.raises(ValueError, match=r"several heat maps are saved as \.html"):
        shown.save(tmp_path / "x.svg")


def test_a_headline_names_words_of_the_text(classifier):
    inputs = classifier.encode(TEXT)
    scores = np.linspace(0.1, 0.5, len(inputs.tokens[0]))
    scores[[0, -1]] = -9, 9
    shown = Heatmap.of(classifier, TEXT, {"m": scores})
    assert shown.strongest("m").startswith("most for: “didn't” +")
    assert "against" not in shown.strongest("m")
    assert shown.shares("m")[0] == -1


def test_a_word_s_row_is_the_sum_of_its_pieces_rows(classifier):
    shown = lrp.explain(classifier, TEXT)
    words, pieces = shown.to_frame(), shown.to_frame(pieces=True)
    assert words.word.str.cat(sep=" ") == "[CLS] Not a chapter passes , it didn't . [SEP]"
    assert list(pieces.token) == shown.tokens
    number = np.repeat(np.arange(len(words)), [len(word.pieces) for word in shown.words])
    sums = pieces[["LOO", "AttnLRP"]].groupby(number).sum()
    np.testing.assert_allclose(sums, words[["LOO", "AttnLRP"]])


def test_a_class_that_is_asked_for_is_named(classifier):
    shown = lrp.explain(classifier, TEXT, "attnlrp", target=1)
    assert shown.caption.startswith("Class: positive, probability ")


def test_what_chance_reaches_is_a_quantile_over_all_orders():
    scores, loo = np.array([3.0, 1.0, 0.2, -0.5, 0.1, 0.0]), np.array([2.0, 2.5, 0.3, 0.1, -1, 0])
    every = [np.corrcoef(order, loo)[0, 1] for order in itertools.permutations(scores)]
    said = tracking(scores, loo, np.ones(6, dtype=bool), words(*"abcdef"))
    reached = float(re.search(r"scores reach ([\d.]+) one", said)[1])
    assert reached == pytest.approx(np.quantile(np.abs(every), 0.95), abs=0.03)


def words(*texts: str) -> list[Word]:
    return [Word(text, (place,), (text,), True) for place, text in enumerate(texts)]


def test_the_sentence_says_what_was_measured():
    loo = np.array([9.0, 1.0, 2.0, -3.0, 0.5, 0.1, 7.0, 8.0])
    content = np.array([False, *[True] * 7])
    names = words("[CLS]", *"abcdefg")
    said = tracking(loo * 2, loo, content, names)
    assert re.match(
        r"Agrees with LOO on this text: r = 1.00 over 7 tokens; shuffled, its scores", said
    )
    assert said.endswith("Both put “g” first.")
    said = tracking(-loo, loo, content, names)
    assert said.startswith("Runs against LOO on this text: r = −1.00 over 7 tokens")
    said = tracking(np.array([0.0, 5, 1, 1.5, 0.2, 0.9, 1, 1.1]), loo, content, names)
    assert said.startswith("On this text it cannot be told from chance whether it agrees with LOO")
    assert said.endswith("It puts “a” first, LOO “g”.")
    assert "cannot be compared" in tracking(np.ones(8), loo, content, names)
    assert "cannot be told from chance" in tracking(loo[6:], loo[6:], content[6:], words("f", "g"))
    assert "was not measured" in tracking(loo, None, content, names)


def test_loo_is_computed_for_the_sentence_alone_only_where_it_is_cheap(classifier, monkeypatch):
    assert "r = " in lrp.explain(classifier, TEXT, "attnlrp").notes["AttnLRP"]
    long = "never dull " * 80
    assert "not measured" in lrp.explain(classifier, long, "attnlrp").notes["AttnLRP"]


ANSWERS = {
    "classes": ("bert", {}, lambda z, _: f"probability {float(z.softmax(0).max()):.2f}"),
    "labels": (
        "bert",
        {"problem_type": "multi_label_classification"},
        lambda z, _: (
            f"Most probable label: LABEL_{z.argmax()}, probability {z.sigmoid().max():.2f}"
        ),
    ),
    "a lone logit": ("bert", {"num_labels": 1}, lambda z, _: f"score: {float(z):+.2f}"),
    "the next token": (
        "gpt2-lm",
        {"pad_token_id": 0},
        lambda z, decode: f"Predicted: {decode([int(z[-1].argmax())])!r}, probability below 0.01",
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_answer_is_that_of_the_model_s_kind(classifier, kind):
    name, options, said = ANSWERS[kind]
    model = tiny.build(name, vocab_size=len(classifier.tokenizer), **options)
    clf = lrp.Classifier(model, classifier.tokenizer, "tiny")
    logits = model(**clf.encode("a film").model_kwargs()).logits[0]
    shown = lrp.explain(clf, "a film", "ig")
    assert shown.caption.endswith(said(logits, classifier.tokenizer.decode))


MISTAKES = {
    "no method": ({"methods": []}, "no method is named"),
    "class out of range": ({"target": 7}, r"target \[7\] out of range"),
    "unknown option": ({"methods": "loo:speed=1"}, "'speed=1' is no option of 'loo'; there are"),
    "no texts": ({"text": []}, r"a chat of messages .* or a list of them; got list"),
    "not all texts": ({"text": [TEXT, 3]}, "or a list of them; got list"),
    "empty": ({"text": " \n"}, "no token of its own"),
    "too long": ({"text": "dull " * 600}, r"longer than the 512 .* max_length=512"),
    "no folder": ({"classifier": "./nowhere"}, "there is no such file or folder"),
    "not Unicode": ({"text": "caf\udce9"}, "is not valid Unicode"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_sentence(classifier, name):
    given, sentence = MISTAKES[name]
    given = {"classifier": classifier, "text": TEXT, **given}
    with pytest.raises((ValueError, TypeError, OSError), match=sentence) as caught:
        lrp.explain(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x.pdf", "x", "none/x.html", "x.html/y.svg"])
def test_a_place_that_cannot_be_written_is_refused(classifier, tmp_path, name):
    (tmp_path / "x.html").touch()
    with pytest.raises((ValueError, OSError), match=r"saved as|there is no folder"):
        lrp.explain(classifier, TEXT, "attnlrp").save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_what_is_hidden_in_a_text_is_written_out():
    assert visible("a\x1b[31m\u202eb\u200b\tc\ud800") == "a⟨001B⟩[31m⟨202E⟩b⟨200B⟩ c⟨D800⟩"
    assert visible(f"so {'a' * 999}b") == f"so {'a' * 29}…{'a' * 29}b"
    for plain in ("naïve 電影", "👩\u200d🚀", "می\u200cخواهم", "e\u0301", "a" * 61):
        assert visible(plain) == plain


@pytest.fixture
def hostile(classifier):
    """A heat map whose text, labels and notes are out to do harm."""
    tokens = HOSTILE.split()
    maps = {name: np.linspace(-1, 1, len(tokens)) for name in ("m", HOSTILE)}
    shown = Heatmap(tokens, maps, caption=HOSTILE)
    shown.notes["m"] = HOSTILE
    return shown


def harmless(text: str) -> bool:
    return all(unicodedata.category(c)[0] != "C" or c == "\n" for c in text)


def test_a_saved_page_runs_nothing_and_loads_nothing(hostile, tmp_path):
    page = hostile.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert harmless(page)
    assert not re.search("<script|<i>|\"&'", page)
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert page.startswith('<!doctype html>\n<html lang="en">')


def test_pictures_are_drawn_of_any_text(hostile, tmp_path):
    svg = hostile.save(tmp_path / "x.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert not re.findall(r"<script|href=\"(?!#)", svg)
    assert "prefers-color-scheme: dark" in svg
    with Image.open(hostile.save(tmp_path / "x.png")) as picture:
        assert picture.width == 1400
    assert hostile.save(tmp_path / "y.svg").read_text(encoding="utf-8") == svg


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_shows_words_in_colour_where_it_has_them(hostile, monkeypatch, variables):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "40", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    painted = str(hostile)
    assert ("\x1b" in painted) == (not variables)
    assert harmless(re.sub(r"\x1b\[(38;5;(16|231);48;5;\d+(;4)?|0)m", "", painted))
    bare = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in painted.splitlines()[:-1]]
    assert variables or max(map(len, bare)) <= 40


def test_a_file_gets_a_table(hostile, capsys):
    print(hostile)
    plain = capsys.readouterr().out
    assert harmless(plain)
    assert "⟨001B⟩]0;own⟨0007⟩" in plain
    assert [line.split()[-1] for line in plain.splitlines()[-2:]] == ["+0.714", "+1.000"]


def test_words_of_the_sentences_that_count_and_the_others_whole(classifier):
    """The long way round: sentences by leave-one-out, then spans written out by hand."""
    text = "It rained. The film is never dull. We ate. A wonderful film. Nobody came."
    inputs = classifier.encode([text])
    loo = lrp.leave_one_out(classifier, inputs, units="sentence", progress=False)[0]
    sentences = [m.span() for m in re.finditer(r"[^ .][^.]*\.", text)]
    sizes = loo[inputs.units("sentence").mask[0]].abs().tolist()
    first = sorted(range(5), key=lambda number: -sizes[number])[:3]
    spans = []
    for number, (begin, end) in enumerate(sentences):
        words = [
            (begin + m.start(), begin + m.end()) for m in re.finditer(r"\w+|\.", text[begin:end])
        ]
        spans += words if number in first else [(begin, end)]
    found, slow = (lrp.explain(classifier, text, units=u) for u in ("sentence,word", spans))
    pd.testing.assert_frame_equal(found.to_frame(), slow.to_frame())


def test_a_terminal_sees_which_method_is_at_work(classifier, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    lrp.explain(classifier, "never dull")
    drawn = terminal.getvalue()
    assert drawn.index("LOO: ") < drawn.index("AttnLRP:  50%")
    assert not drawn.split("\r")[-1].strip()


def test_a_first_token_that_a_map_fills_is_named(classifier, monkeypatch):
    text = "never dull or dreary"
    loo = lrp.leave_one_out(classifier, classifier.encode([text]), progress=False)
    told = {}
    for share in (0.95, 0.05):
        sink = torch.ones_like(loo)
        sink[0, 0] = share / (1 - share) * (sink.shape[1] - 1)
        monkeypatch.setattr(explaining, "attribute", lambda *_, scores=sink, **__: scores)
        told[share] = lrp.explain(classifier, text, "attnlrp").notes["AttnLRP"]
    size = float(loo[0, 0].abs() / loo.abs().sum())
    assert f"The first token has 95% of the map's size, and {size:.0%} of LOO's." in told[0.95]
    assert "first token" not in told[0.05]


def test_a_method_stands_in_several_settings(classifier):
    shown = lrp.explain(classifier, "a film", "mask-gradient,mask-gradient:groups=2")
    table, inputs = shown.to_frame(pieces=True), classifier.encode("a film")
    for label, how in (("Mask gradient", {}), ("Mask gradient, groups=2", {"groups": 2})):
        own = lrp.attribute(classifier, inputs, "mask-gradient", **how)[0]
        np.testing.assert_allclose(table[label], own, atol=1e-6)
