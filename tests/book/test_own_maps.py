"""A chapter that is given a model and texts is about them, not about the recorded runs alone."""

from __future__ import annotations

import json

import nbformat
import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.book.execution import execute
from lrputils.book.layout import Execution, find_book
from lrputils.book.results_page import read_answer, read_tables
from lrputils.report.display import TABLE

BOOK = find_book()
NAME = "own-judge"
TEXTS = [
    "the plot was slow and the music wonderful",
    "i would not watch this again",
    "a dull story with a great ending",
    "nothing here is funny and nobody is sad",
    "this is the best film of the year",
    "the actors try but the script is poor",
]


@pytest.fixture(scope="module")
def given(classifier, tmp_path_factory):
    """A tiny model's folder and a file of six texts, as parameters."""
    folder = tmp_path_factory.mktemp("own")
    classifier.model.save_pretrained(folder / NAME)
    classifier.tokenizer.save_pretrained(folder / NAME)
    pd.DataFrame({"text": TEXTS}).to_csv(folder / "six.csv", index=False)
    return {"model": str(folder / NAME), "dataset": str(folder / "six.csv")}


def mean_r(classifier, method, own=True, **how):
    """The mean of r with LOO over own tokens or all, text by text, by the package's own calls."""
    found = []
    for text in TEXTS:
        inputs = classifier.encode([text])
        where = inputs.content_mask if own else inputs.valid_mask
        loo = lrp.leave_one_out(classifier, inputs, progress=False, **how)
        found += [*lrp.pearson(lrp.attribute(classifier, inputs, method), loo, where)]
    return np.mean(found)


# Chapter → a table or figure, its row and column, and what stands there.
CELLS = {
    "06_specifications": (
        "tab-named",
        ("all", "raw", NAME, "words"),
        "value",
        lambda clf: mean_r(clf, "attnlrp", own=False) - mean_r(clf, "cp-lrp", own=False),
    ),
    "07_remedy": (
        "tab-ladder",
        (NAME, "six", "one pass"),
        "r",
        lambda clf: mean_r(clf, "mask-gradient"),
    ),
    "08_yardstick": (
        "fig-removals",
        (NAME, "AttnLRP", "delete"),
        "value",
        lambda clf: mean_r(clf, "attnlrp", removal="delete"),
    ),
}


@pytest.mark.parametrize("chapter", CELLS)
def test_its_figures_and_tables_hold_the_run(chapter, given, classifier, tmp_path):
    executed = execute(BOOK, {chapter: given}, Execution(quiet=True), tmp_path)[chapter]
    ours = nbformat.read(executed, 4)
    shown, twin = {}, nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4)
    tags = [cell.metadata.get("tags", []) for cell in ours.cells]
    cells = [c for c, tag in zip(ours.cells, tags, strict=True) if "injected-parameters" not in tag]
    for cell, other in zip(cells, twin.cells, strict=True):
        for output, theirs in zip(cell.get("outputs", ()), other.get("outputs", ()), strict=False):
            if TABLE in output.get("data", {}):
                values, kind = output.data[TABLE], "image/svg+xml" in output.data
                shown.setdefault(kind, []).append(values != theirs.data[TABLE])
                assert NAME in json.dumps(values) or values == theirs.data[TABLE]
    assert np.mean(shown[True]) >= 3 / 4  # of the figures
    assert np.mean(shown[False]) >= 3 / 5  # of the tables
    answer = read_answer(ours)
    assert answer.startswith(f"On {NAME}, 6 texts: ")
    assert "too few texts to put one ahead" in answer
    name, row, column, expected = CELLS[chapter]
    found = read_tables(ours)[name].loc[row, column]
    assert found == pytest.approx(expected(classifier), abs=1e-4)
