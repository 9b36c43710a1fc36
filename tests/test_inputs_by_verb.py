"""Texts in every form that people keep them in × every verb that takes them: the same scores.

The scores are leave-one-out by plain torch, a masked forward pass a token. What is no text, and
which sentence says so, is in `test_mistakes.py`.
"""

import gzip
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from tests import reference

TEXTS = ["a good film, really", "007", "NA"]
LABELS = [1, 0, 1]
TABLE = pd.DataFrame({"text": TEXTS, "label": LABELS})
CSV = TABLE.to_csv(index=False)
AT_HAND: dict[str, Callable[[], Any]] = {
    "a list": lambda: list(TEXTS),
    "a generator": lambda: (text for text in TEXTS),
    "an iterator": lambda: iter(TEXTS),
    "an array": lambda: np.array(TEXTS),
    "an array of objects": lambda: np.array(TEXTS, dtype=object),
    "a Series": lambda: TABLE.text,
    "a Series of another index": lambda: pd.Series(TEXTS, index=[7, 3, 5]),
    "a Series of pandas' strings": lambda: pd.Series(TEXTS, dtype="string"),
    "categories": lambda: TABLE.text.astype("category"),
    "an Index": lambda: pd.Index(TEXTS),
    "a dict's values": lambda: dict(enumerate(TEXTS)).values(),
    "records": lambda: TABLE.to_dict("records"),
    "a dict of lists": lambda: TABLE.to_dict("list"),
    "a DataFrame": lambda: TABLE,
    "columns of other letter case": lambda: TABLE.rename(columns=str.upper),
    "a data set": lambda: datasets.Dataset.from_pandas(TABLE),
    "a column of it": lambda: datasets.Dataset.from_pandas(TABLE)["text"],
    "its only split": lambda: datasets.DatasetDict(test=datasets.Dataset.from_pandas(TABLE)),
    "texts that were loaded": lambda: lrp.load_texts(TABLE),
}


def _zipped(path: Path) -> None:
    with ZipFile(path, "w") as archive:
        archive.writestr("inside.csv", CSV)
        archive.writestr("__MACOSX/._inside.csv", b"")


def _splits(path: Path) -> None:
    path.mkdir()
    TABLE.to_parquet(path / "test-00000.parquet")
    TABLE[::-1].to_parquet(path / "train-00000.parquet")


def _lines(path: Path, *, quoted: bool = False) -> None:
    rows = TABLE.astype(str) if quoted else TABLE
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows.to_dict("records")))


FILES: dict[str, Callable[[Path], Any]] = {
    "commas.csv": lambda path: path.write_text(CSV),
    "tabs.tsv": lambda path: TABLE.to_csv(path, index=False, sep="\t"),
    "semicolons.csv": lambda path: TABLE.rename(
        columns={"text": "Sentence", "label": "Label"}
    ).to_csv(path, index=False, sep=";"),
    "mark.csv": lambda path: path.write_text(CSV, encoding="utf-8-sig"),
    "windows.csv": lambda path: path.write_bytes(CSV.replace("\n", "\r\n").encode()),
    "column.csv": lambda path: path.write_text("\n".join(["text", *TEXTS])),
    "lines.txt": lambda path: path.write_text("\n".join(TEXTS)),
    "packed.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode())),
    "packed.zip": _zipped,
    "value.json": lambda path: TABLE.to_json(path, orient="records"),
    "lines.jsonl": _lines,
    "quoted.jsonl": lambda path: _lines(path, quoted=True),
    "table.parquet": lambda path: TABLE.to_parquet(path),
    "table.arrow": lambda path: TABLE.to_feather(path),
    "folder": _splits,
    "saved": lambda path: datasets.Dataset.from_pandas(TABLE).save_to_disk(path),
    "saved with splits": lambda path: AT_HAND["its only split"]().save_to_disk(path),
}


@pytest.fixture(scope="module")
def exact(classifier):
    """Leave-one-out of each text, by nothing but the model and its tokenizer."""
    texts = [classifier.tokenizer(text, return_tensors="pt") for text in TEXTS]
    return [reference.leave_one_out(classifier.model, ids)[0].numpy() for ids in texts]


@pytest.mark.parametrize("name", AT_HAND)
def test_texts_at_hand(classifier, name):
    given, texts = AT_HAND[name](), lrp.load_texts(AT_HAND[name]())
    assert list(texts) == TEXTS
    assert texts.identity.startswith("sha256 ")
    if isinstance(given, pd.DataFrame | datasets.Dataset):
        assert texts.labels == tuple(LABELS)
    if isinstance(given, datasets.DatasetDict):
        with pytest.raises(TypeError, match=r"pass one of its splits \['test'\]"):
            classifier.encode(given)
    else:
        assert torch.equal(classifier.encode(given).input_ids, classifier.encode(TEXTS).input_ids)


def test_every_verb_takes_them(classifier, exact):
    evaluated = lrp.evaluate(classifier, AT_HAND["a generator"](), [], progress=False).maps["loo"]
    explained = [shown.maps["LOO"] for shown in lrp.explain(classifier, TEXTS, "LOO")]
    for maps in (evaluated, explained):
        for ours, theirs in zip(maps, exact, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=3e-5)


@pytest.mark.parametrize("name", FILES)
def test_files(classifier, name, tmp_path):
    FILES[name](path := tmp_path / name)
    texts = lrp.load_texts(path)
    assert list(texts) == TEXTS
    if path.is_file():
        assert texts.identity == f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert texts.labels is None or classifier.number_labels(texts.labels) == LABELS


def test_a_folder_on_the_command_line(classifier, exact, tmp_path, monkeypatch):
    FILES["folder"](path := tmp_path / "folder")
    monkeypatch.setattr("lrputils.model.classifier.load_classifier", lambda *_, **__: classifier)
    command = ["evaluate", "--dataset", str(path), "--methods", "loo", "--out"]
    assert main([*command, str(tmp_path / "out"), "--quiet"]) == 0
    rows = pd.read_parquet(tmp_path / "out/rows")
    for ours, theirs in zip(rows.scores, exact, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)  # as they are kept


def test_a_text_on_the_command_line_and_from_standard_input(classifier, exact, monkeypatch, capsys):
    monkeypatch.setattr("lrputils.model.classifier.load_classifier", lambda *_, **__: classifier)
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXTS[0]))
    shown = []
    for text in (TEXTS[0], "-"):
        assert main(["explain", text, "--methods", "loo"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    last = [float(line.split()[-1]) for line in shown[0].splitlines()[-2:]]
    np.testing.assert_allclose(last, exact[0][-2:], atol=6e-4)  # three decimals
