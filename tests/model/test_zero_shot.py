"""A language model as a classifier: its own logits of some tokens behind a prompt."""

import re

import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from lrputils.book.parameters import declared
from lrputils.runs.datasets import read
from tests import tiny

TEMPLATE = "Text: {text}\nIs it A or B?"
TEXTS = ["the end", "A dog, is it?"]


@pytest.mark.parametrize("name", ["llama-lm", "gpt2-lm"])
def test_logits_and_maps_are_the_language_models_own(name):
    lm = tiny.language_model(name)
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
    clf = tiny.language_model().zero_shot(TEMPLATE, ["A", "B"])
    rows = lrp.evaluate(clf, TEXTS, ["attnlrp"], progress=False).rows
    assert set(rows.id) == {"0", "1"}
    shown = lrp.explain(clf, TEXTS[0])
    assert shown.origin.endswith(f"asked “{TEMPLATE}”")
    assert shown.answer[0] in ("A", "B")
    own = [word.text for place, word in enumerate(shown.words) if place not in shown.special]
    assert own == ["the", "␣", "end"]
    other = tiny.language_model().zero_shot("{text} is", ["A", "B"])
    assert clf.parts != other.parts
    assert {**clf.parts, "template": other.prompt.template} == other.parts


def test_thresholds_are_the_medians_over_unlabelled_texts_and_a_part_of_the_model():
    plain = tiny.language_model().zero_shot(TEMPLATE, ["A", "B"])
    texts = ["the end", "A dog, is it?", "Hm.", "This is a film"]
    clf = tiny.language_model().zero_shot(TEMPLATE, ["A", "B"], calibrate_on=texts)
    each = [plain.model(**plain.encode([text]).model_kwargs()).logits[0] for text in texts]
    middle = torch.stack(each).log_softmax(1).quantile(0.5, 0)
    assert clf.prompt.thresholds == pytest.approx(middle.tolist(), abs=1e-4)
    inputs = clf.encode(texts)
    logits = clf.model(**inputs.model_kwargs()).logits
    torch.testing.assert_close(logits, torch.stack(each) - middle, atol=2e-4, rtol=0)
    assert set(logits.argmax(1).tolist()) == {0, 1}
    assert len({part["thresholds"] for part in (plain.parts, clf.parts)}) == 2
    again = tiny.language_model().zero_shot(*clf.prompt)
    assert again.parts == clf.parts
    for method in ("loo", "cp-lrp"):
        torch.testing.assert_close(
            lrp.attribute(clf, inputs, method, target=1),
            lrp.attribute(plain, plain.encode(texts), method, target=1),
        )


@pytest.fixture
def folder(tmp_path):
    return tiny.save(tiny.language_model(), tmp_path / "lm")


def test_every_chapter_that_takes_a_classifier_makes_one(folder):
    given = {"model": str(folder), "device": "cpu", "verbalizers": "A,B"}
    given["template"] = TEMPLATE.replace("\n", r"\n")  # as a shell gives it
    for name, path in find_book().chapters().items():
        notebook = read_text(path)
        if "model" not in declared(notebook) or name == "12_language_models":
            continue  # chapter 12 also asks the language model itself
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        found = re.search(r"^ *(clf = lrp\.load_classifier\((?:.|\n)*?\)$)", code, re.M)
        exec(found[1], names := {"lrp": lrp, **given})
        assert names["clf"].prompt == (TEMPLATE, ("A", "B"), ()), name


def test_a_shell_makes_one_by_template_and_verbalizers(folder, tmp_path, capsys):
    lm, data = tiny.language_model(), tmp_path / "texts.csv"
    data.write_text("text,label\n" + "".join(f"{text!r},A\n" for text in ["Hm.", "the end"]))
    how = ["--model", str(folder), "--device", "cpu"]
    how += ["--template", r"Text: {text}\nIs it A or B?", "--verbalizers", "A,B"]
    assert main(["explain", "the end", *how]) == 0
    assert lrp.explain(lm.zero_shot(TEMPLATE, ["A", "B"]), "the end").answer[0] in (
        capsys.readouterr().out
    )
    out = tmp_path / "rows"
    given = [*how, "--dataset", str(data), "--calibrate", "2", "--out", str(out), "--quiet"]
    assert main(["evaluate", *given, "--methods", "cp-lrp"]) == 0
    facts = read(out).provenance
    assert facts["model"]["template"] == TEMPLATE
    assert len(facts["model"]["thresholds"]) == 2
    assert facts["accuracy"] is not None
    others = ["B,A" if word == "A,B" else word for word in given]
    assert main(["evaluate", *others, "--methods", "cp-lrp"]) == 1
    assert "with other verbalizers (" in capsys.readouterr().err
    assert main(["explain", "a film", "--template", "{text} is"]) == 1
    assert "template and verbalizers come together" in capsys.readouterr().err


def test_a_longer_text_is_cut_inside_of_its_template():
    clf = tiny.language_model().zero_shot(TEMPLATE, ["A", "B"])
    texts = ["no end", "A dog 😀😀, is it?", "of 😀"]
    whole = [[*clf.encode([text]).tokens[0]] for text in texts]
    around = len(clf.encode(["b"]).tokens[0]) - 1
    for most in range(around + 1, max(map(len, whole)) + 1):
        inputs = clf.encode(texts, most, truncate=True)
        assert inputs.truncated == tuple(i for i, row in enumerate(whole) if len(row) > most)
        for tokens, row, mask in zip(inputs.tokens, whole, inputs.content_mask, strict=True):
            kept = int(mask.sum())
            assert around + kept == len(tokens) <= most
            behind = around - 6  # "Text: " are six tokens
            assert [*tokens] == [*row[: 6 + kept], *row[len(row) - behind :]]
    with pytest.raises(ValueError, match=f"and {around} is the most"):
        clf.encode(texts, around, truncate=True)
