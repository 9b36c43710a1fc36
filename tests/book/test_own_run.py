"""A chapter that is given a model and texts is about them: its figures and tables show that run.

Another chapter joins by a line in `ALONE` and its numbers in a test.
"""

import json
import re
from functools import cache
from itertools import product

import nbformat
import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.book.execution import execute
from lrputils.book.layout import Execution, find_book
from lrputils.book.results_page import read_answer, read_tables
from lrputils.runs.datasets import read
from tests import tiny

NAME = "a-model-of-mine"
TEXTS = (
    "the soup was cold and the waiter slow",
    "a warm bright room with a view of the sea",
    "nobody answered the phone all week",
    "it works well and it was cheap",
    "the chair broke after two days of use",
    "my sister reads it every evening and laughs",
)
# What a run cannot stand in, by chapter.
ALONE = {
    "03_sst": {"fig-sst-rules"},  # each rule on or off, recorded
    "04_imdb": set(),
    "05_layer_ablation": set(),
    "06_specifications": set(),
    "07_remedy": {"fig-saturation"},  # paths to LOO, recorded
    "08_yardstick": {
        "tab-example-pairs",  # the running example
        "tab-planted",  # models that were trained on a planted rule
    },
}
BOOK = find_book()
# The others take minutes together: `make rehearse`.
CHAPTERS = [
    pytest.param(name, marks=() if name == "03_sst" else pytest.mark.rehearsal) for name in ALONE
]


@pytest.fixture(scope="session")
def mine(tmp_path_factory):
    """The chapters' parameters: a tiny model, and texts with labels."""
    folder = tmp_path_factory.mktemp("mine")
    tiny.save(tiny.classifier(layers=4), folder / NAME)
    labels = [0, 1, 0, 1, 0, 1]
    pd.DataFrame({"text": TEXTS, "label": labels}).to_csv(folder / "six.csv", index=False)
    return {"model": str(folder / NAME), "dataset": str(folder / "six.csv"), "limit": 6}


@pytest.fixture(scope="session")
def executed(mine, tmp_path_factory):
    """A chapter of `ALONE`, executed with them once, by its name."""
    out = tmp_path_factory.mktemp("executed")

    @cache
    def run(name):
        return nbformat.read(execute(BOOK, {name: mine}, Execution(quiet=True), out=out)[name], 4)

    return run


@pytest.fixture(scope="session")
def evaluated(mine, tmp_path_factory):
    """The folder that `lrputils evaluate` writes of the same, with all that chapters show."""
    out = tmp_path_factory.mktemp("evaluated")
    asked = ["--methods", "ig,attnlrp,cp-lrp", "--readouts", "word,sum,post-norm"]
    asked += ["--curves", "1", "--layers", "--out", str(out), "--quiet"]
    given = [part for name, value in mine.items() for part in (f"--{name}", str(value))]
    assert main(["evaluate", *given, *asked]) == 0
    return out


@pytest.fixture(scope="session")
def rows(evaluated):
    return read(evaluated).rows


def captioned(notebook):
    """What each captioned figure and table shows, by its name."""
    names = (
        (c.metadata.get("mystnb", {}).get("figure", {}).get("name"), c) for c in notebook.cells
    )
    return {
        name: json.dumps([o.get("data") for o in cell.outputs], ensure_ascii=False, sort_keys=True)
        for name, cell in names
        if name
    }


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_figures_and_tables_show_the_run_under_its_name(executed, chapter):
    committed = nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4)
    before, after = captioned(committed), captioned(executed(chapter))
    assert before.keys() == after.keys()
    assert ALONE[chapter] <= before.keys()
    unnamed = {name for name in before if NAME not in after[name]}
    assert unnamed == ALONE[chapter]
    assert not [name for name in before if NAME in before[name]]
    changed = {name for name in before if before[name] != after[name]}
    assert len(changed) >= len(before) / 2


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_it_answers_by_name_and_says_that_six_texts_are_few(executed, chapter):
    said = read_answer(executed(chapter))
    assert said.startswith(f"On {NAME}, 6 texts: ")
    assert said.endswith("20 texts are the least that decide.")
    first = next(cell for cell in executed(chapter).cells if cell.cell_type == "code")
    (shown,) = (output.data["text/markdown"] for output in first.outputs)
    assert shown.startswith(said)
    assert "**Answer.** " in shown
    assert re.search(r"[+−-]?0\.\d\d", said)
    committed = nbformat.read(BOOK.chapter(chapter).with_suffix(".ipynb"), 4)
    assert read_answer(committed) == ""


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    "name",
    [
        "05_layer_ablation",
        "06_specifications",
        "07_remedy",
        "07b_backward",
        "08_yardstick",
        "09_cost",
        "11_architectures",
        "12_language_models",
    ],
)
def test_a_chapter_answers_whatever_the_texts_labels_are_called(name, mine, tmp_path):
    table = pd.DataFrame({"text": TEXTS, "label": ["great", "poor"] * 3})
    table.to_csv(tmp_path / "called.csv", index=False)
    given = {**mine, "dataset": str(tmp_path / "called.csv")}
    if name == "07b_backward":
        given = {"model": given["model"]}
    path = execute(BOOK, {name: given}, Execution(quiet=True), out=tmp_path)[name]
    notebook = nbformat.read(path, 4)
    assert re.match(f"On {NAME}, [16] texts?: .*\\d", read_answer(notebook))
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", ())]
    assert not [each for each in outputs if each.get("name") == "stderr"]


R = {"own tokens": "r_content", "sum to one": "r_normalised"}
LOGITS = {"LeRF": "lerf", "MoRF": "morf", "Δ": "delta"}
TABLE_2 = {"r, own tokens": "r_content", "r, sum to one": "r_normalised", "Δ": "delta"}


def assert_means(tables, rows, name, data):
    """Chapter 3 or 4 shows of a run, by method, the means of its rows: r, and along the curves."""
    if data == "sst":
        shown, columns = tables["tab-sst-2"][name].unstack(0), TABLE_2
    else:
        shown = tables["tab-imdb-r"].loc[name].join(tables["tab-imdb-logits"].loc[name])
        columns = R | LOGITS
    for method, own in rows.groupby("method"):
        known = {name: column for name, column in columns.items() if name in shown}
        found = shown.loc[lrp.METHODS[method].label, [*known]].astype(float)
        assert [*found] == pytest.approx([*own[[*known.values()]].mean()], abs=1e-4)


def assert_sets(tables, rows, name, texts="sentences"):
    """Chapter 5 shows what r at the sum gains in each set of layers, and Δ at the words on
    sentences, from below and from above."""
    means = rows.groupby(["readout", "family", "layer"])[["r_normalised", "r_content", "delta"]]
    means = means.mean()
    plain = rows[(rows.method == "attnlrp") & (rows.family == "")].groupby("readout")
    plain = plain[["r_normalised", "delta"]].mean()
    gains = {"r": means.loc["sum"].r_normalised - plain.r_normalised["sum"]}
    gains["Δ, %"] = 100 * (means.loc["word"].delta / plain.delta["word"] - 1)
    figures = {"r": "fig-ablation", "Δ, %": "fig-ablation-delta"}
    sets = {"front": "layers 1 to k", "back": "layers k to L", "single": "layer k"}
    for (measure, gain), (family, of) in product(gains.items(), sets.items()):
        if measure != "r" and (family == "single" or texts != "sentences"):
            continue
        drawn = tables[figures[measure]].value.sort_index()
        found = drawn.loc[texts, f"gain in {measure},\n{of}", name]
        # A percentage of a tiny model's Δ is as exact as that Δ, which all sets are divided by.
        close = {"r": 1e-4, "Δ, %": 3e-4 * float(gain.abs().max())}[measure]
        assert [*found] == pytest.approx([*gain[family]], rel=5e-3, abs=close)
    return means.loc["sum"].r_content


def test_chapter_3_has_the_numbers_of_evaluate(executed, rows):
    tables = read_tables(executed("03_sst"))
    plain = rows[(rows.family == "") & (rows.method != "loo")]
    assert_means(tables, plain[plain.readout == "word"], NAME, "sst")
    at_sum = plain[plain.readout == "sum"].groupby("method").r.mean()
    lead = tables["fig-sst-order"].value["all tokens", NAME, "sum"]
    assert lead == pytest.approx(at_sum["attnlrp"] - at_sum["cp-lrp"], abs=1e-4)


@pytest.mark.rehearsal
def test_chapter_4_has_the_numbers_of_evaluate(executed, mine):
    clf, texts = (
        lrp.load_classifier(mine["model"]),
        lrp.load_texts(mine["dataset"], limit=6, seed=0),
    )
    rows = lrp.evaluate(clf, texts, ["attnlrp", "ig"], chunk=16, progress=False).rows
    tables = read_tables(executed("04_imdb"))
    assert_means(tables, rows[rows.method != "loo"], NAME, "imdb")
    whole = tables["tab-imdb-promised"].loc[(NAME, "the whole text")]
    loo = lrp.leave_one_out(clf, inputs := clf.encode([*texts]), progress=False)
    promised = (loo * inputs.content_mask).sum(1).mean()
    assert float(whole.promise) == pytest.approx(float(promised), abs=1e-4)


@pytest.fixture(
    scope="session", params=[pytest.param("computed", marks=pytest.mark.rehearsal), "read"]
)
def layer_ablation(request, tmp_path_factory):
    """Chapter 5 of the run that it computes, and of the one that `rows=` names."""
    name, out = "05_layer_ablation", tmp_path_factory.mktemp("read")
    if request.param == "computed":
        return request.getfixturevalue("executed")(name)
    given = {name: {"rows": str(request.getfixturevalue("evaluated"))}}
    return nbformat.read(execute(BOOK, given, Execution(quiet=True), out)[name], 4)


def test_chapter_5_has_the_numbers_of_evaluate(layer_ablation, rows):
    tables = read_tables(layer_ablation)
    assert read_answer(layer_ablation).startswith(f"On {NAME}, 6 texts: ")
    halves = assert_sets(tables, rows, NAME)
    shown = tables["fig-halves"].value.sort_index().xs(f"{NAME}, six", level=2)["own tokens, raw"]
    assert shown["later half"] - shown["earlier half"] == pytest.approx(
        halves["back", 3] - halves["front", 2], abs=1e-4
    )


def mean_r(clf, method, **how):
    """The mean of r with LOO over own tokens, text by text, by the package's own calls."""
    found = []
    for text in TEXTS:
        inputs = clf.encode([text])
        loo = lrp.leave_one_out(clf, inputs, progress=False, **how)
        found += [*lrp.pearson(lrp.attribute(clf, inputs, method), loo, inputs.content_mask)]
    return np.mean(found)


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("chapter", "table", "row", "column", "expected"),
    [
        (
            "06_specifications",
            "fig-leads",
            (f"{NAME}: raw", "word", "neither"),
            "value",
            lambda clf: mean_r(clf, "attnlrp") - mean_r(clf, "cp-lrp"),
        ),
        (
            "07_remedy",
            "fig-price",
            ("six", NAME, "Mask gradient"),
            "value",
            lambda clf: mean_r(clf, "mask-gradient"),
        ),
        (
            "08_yardstick",
            "fig-yardsticks",
            ("r with LOO", "AttnLRP", f"{NAME}\nsix"),
            "value",
            lambda clf: mean_r(clf, "attnlrp"),
        ),
    ],
)
def test_later_chapters_have_the_numbers_of_the_package(
    executed, mine, chapter, table, row, column, expected
):
    found = read_tables(executed(chapter))[table].loc[row, column]
    assert found == pytest.approx(expected(lrp.load_classifier(mine["model"])), abs=1e-4)
