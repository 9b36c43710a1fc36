"""What people pass by mistake, and the one sentence that each mistake is answered with."""

import io
import json
import shutil
from zipfile import ZipFile

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from tests import tiny

TABLE = pd.DataFrame({"words": ["good", "bad"], "stars": [1, 0]})
TAKES = r"texts are a string, a list or an iterator of strings, .* a datasets\.Dataset; got a "
# What is passed for texts, wherever texts are taken → the sentence.
TEXTS = {
    "a number": (3, TAKES + "int"),
    "an open file": (io.StringIO("good"), TAKES + "StringIO"),
    "bytes": (b"good", TAKES + "bytes"),
    "a set": ({"good"}, TAKES + "set"),
    "a tensor": (torch.zeros(2), TAKES + "Tensor"),
    "a matrix": (np.array([["good"]]), TAKES + r"ndarray of shape \(1, 1\)"),
    "a dict": ({"words": ["good"]}, r"has none of the columns \['text', .* from \['words'\]"),
    "a record": ({"words": "good"}, r"has none of the columns \['text', .* from \['words'\]"),
    "a record among strings": (["good", {"text": "good"}], r"Text 1 is {'text': 'good'} \(dict\)"),
    "a string among records": (
        [{"text": "good"}, "good"],
        r"Text 1 is .good. \(str\), not a record as text 0 is",
    ),
    "encoded texts": (
        lambda clf: clf.encode("good"),
        "these are encoded texts: pass them to a method",
    ),
    "several splits": (
        datasets.DatasetDict({n: datasets.Dataset.from_dict({"text": ["good"]}) for n in "ab"}),
        r"(pass one of its splits|needs a split: choose from) \['a', 'b'\]",
    ),
    "a missing value": (["good", None], r"Text 1 is None \(NoneType\), not a string"),
    "a float for it": (pd.Series(["good", np.nan]), r"Text 1 is nan \(float\), not a string"),
    "triples": (
        [("good", "film", "!")],
        r"Text 0 is .* .tuple., not a string or a pair",
    ),
    "nothing": ([], "There are no texts"),
    "unusual columns": (TABLE, r"has none of the columns \['text', .* from \['words', 'stars'\]"),
}


@pytest.fixture
def takers(classifier):
    return {
        "encode": classifier.encode,
        "evaluate": lambda texts: lrp.evaluate(classifier, texts, ["rollout"], progress=False),
        "load_texts": lrp.load_texts,
    }


@pytest.mark.parametrize("taker", ["encode", "evaluate", "load_texts"])
@pytest.mark.parametrize("mistake", TEXTS)
def test_what_are_no_texts(takers, classifier, mistake, taker):
    passed, sentence = TEXTS[mistake]
    passed = passed(classifier) if callable(passed) else passed
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        takers[taker](passed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"choose text_column \(in a chapter, `columns`\) from \['words', 'stars'\]"),
        ({"text_column": "Words"}, r"has no column 'Words': choose text_column"),
        ({"text_column": "words", "label_column": "y"}, r"has no column 'y': choose label_column"),
        ({"text_column": "stars"}, r"no text in row 0 of column 'stars': 1\. Remove such rows"),
    ],
)
def test_columns_that_are_not_there(takers, classifier, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        lrp.load_texts(TABLE, **options)
    with pytest.raises(ValueError, match=sentence):
        lrp.evaluate(classifier, TABLE, ["rollout"], **options, progress=False)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "words", "text_column": "words"}, "text_column or label_column: give one"),
        ({"text_column": "words", "split": "test"}, "split='test' belongs to files and the hub"),
        ({"text_column": "words", "revision": "v1"}, "revision='v1' belongs to files and the hub"),
    ],
)
def test_options_that_a_table_at_hand_has_not(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        lrp.load_texts(TABLE, **options)


def zipped(*names: str) -> bytes:
    """An archive of files with nothing in them."""
    with ZipFile(content := io.BytesIO(), "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return content.getvalue()


FILES = {
    "two.zip": (zipped("a.csv", "b.csv"), "holds 2 files: unpack it, and name one"),
    "none.zip": (zipped(), "holds 0 files: unpack it"),
    "broken.zip": (b"PK no archive", "cannot be read: File is not a zip file"),
    "latin.csv": ("text,label\ncafé,1\n".encode("latin-1"), "is not UTF-8 text: save it as UTF-8"),
    "sixteen.csv": ("text,label\na,1\n".encode("utf-16"), "is not UTF-8 text"),
    "commas.csv": (
        b"text,label\na, b,1\nc, d,0\n",
        "cannot be read: .* not as many as the columns",
    ),
    "ragged.csv": (b"text,label\na,1\nb, c, d,0\n", "cannot be read: "),
    "broken.json": (b'{"text": ', "cannot be read: "),
    "broken.csv.gz": (b"text\na\n", "cannot be read: "),
    "book.xlsx": (
        b"PK",
        r"it may be \.csv, \.tsv, \.txt, \.json, \.jsonl, \.parquet, \.arrow, each also",
    ),
    "empty.csv": (b"text,label\n", "holds no texts"),
    "empty.txt": (b"\n\n", "holds no texts"),
    "nothing.csv": (b"", "cannot be read: "),
    "no-header.csv": (b"a film,1\n", r"none of the columns .* from \['a film', '1'\]"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_with_something_wrong(tmp_path, name):
    content, sentence = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as caught:
        lrp.load_texts(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    clf = tiny.classifier(layers=1)
    return tiny.save(clf, tmp_path_factory.mktemp("sound"))


def _configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _adapter(folder):
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{}")


def _pickled(folder, content):
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")


def _headless(folder):
    clf = tiny.classifier(layers=1)
    clf.model.bert.save_pretrained(folder)
    _configure(folder, architectures=["BertForSequenceClassification"])


MODELS = {
    "another head": (
        lambda f: _configure(f, architectures=["BertForMaskedLM"]),
        "BertForMaskedLM, not a classifier",
    ),
    "no head": (_headless, r"lack \d param.*classifier\.bias"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer"),
    "an adapter": (_adapter, r"holds a PEFT adapter: .* merge_and_unload\(\), and save"),
    "no config": (lambda f: (f / "config.json").unlink(), "holds no config.json"),
    "its own code": (
        lambda f: _configure(f, model_type="x", auto_map={"AutoConfig": "x.X"}),
        "comes with program code of its own, which is never run here",
    ),
    "unknown kind": (lambda f: _configure(f, model_type="x"), "does not know its kind of model"),
    "more than tensors": (
        lambda f: _pickled(f, {"x": f}),
        "more than tensors, and such a file could run code: save its weights as safetensors",
    ),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes(b"x"),
        "its safetensors file is damaged",
    ),
    "other shapes": (lambda f: _configure(f, vocab_size=7), "its weights have other shapes"),
    "missing library": (
        lambda f: _configure(f, quantization_config={"quant_method": "gptq", "bits": 4}),
        "cannot be loaded",
    ),
}
ADVICE_WE_DO_NOT_GIVE = ("trust_remote_code=", "weights_only", "hf.co", "Traceback")


@pytest.mark.parametrize("name", MODELS)
def test_models_with_something_wrong(folder, tmp_path, name):
    spoil, sentence = MODELS[name]
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    spoil(path)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as caught:
        lrp.load_classifier(path)
    said = str(caught.value)
    assert "\n" not in said
    assert not [advice for advice in ADVICE_WE_DO_NOT_GIVE if advice in said]


@pytest.mark.filterwarnings("always")
def test_a_warning_on_the_command_line_is_one_sentence(capsys):
    assert main(["explain", "a film [SEP] never dull", "--methods", "rollout"]) == 0
    told = capsys.readouterr().err.strip().splitlines()[0]
    assert told.startswith(
        "lrputils: Text 0 holds '[SEP]', which separates the two texts of a pair"
    )
