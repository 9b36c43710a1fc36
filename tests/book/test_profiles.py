import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import nbformat
import pandas as pd
import pytest

import lrputils as lrp
from experiments import layers, paper
from lrputils.__main__ import main
from lrputils.book.execution import execute
from lrputils.book.layout import BookError, Execution, find_book
from lrputils.book.parameters import load_parameters
from lrputils.book.results_page import read_answer, read_tables
from lrputils.runs import datasets
from lrputils.study.variants import at_every_readout
from tests import tiny
from tests.book.test_own_run import assert_means, assert_sets

PAPER = load_parameters(find_book(), "paper")
NAME = "stand-in"
CHUNKS = {"SST-2": 1, "IMDB": 16}  # tokens that go at once


def test_a_chapter_s_section_wins_over_all_and_a_default_is_not_injected(small_book, tmp_path):
    (small_book.root / "profiles/mine.yml").write_text(
        "_all: {factor: 3.0, count: 1, unused: x}\n01_short: {factor: 4.0}\n"
    )
    assert load_parameters(small_book, "mine") == {"01_short": {"factor": 4.0, "count": 1}}
    path = tmp_path / "other.yml"
    path.write_text("01_short: {factor: 5.0}\n")
    assert load_parameters(small_book, str(path)) == {"01_short": {"factor": 5.0}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("02_long: {}\n", "no chapter '02_long'; the chapters are: 01_short"),
        ("01_short: {speed: 1}\n", "no parameter 'speed'; it has: factor"),
        ("01_short: {factor: fast}\n", "of type str, wanted: float"),
        ("_all: {speed: 1}\n", r"no chapter has the _all parameter\(s\) \['speed'\]"),
        ("- a\n", "must be a mapping"),
        ("01_short: 3\n", "must be a mapping"),
        ("a: [\n", "is not YAML"),
        ("01_short: {factor: 2, factor: 3}\n", "factor stands twice"),
        ("a: &x [1]\nb: *x\n", "it has an alias"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(small_book, text, complaint):
    (small_book.root / "profiles/mine.yml").write_text(text)
    with pytest.raises(BookError, match=complaint):
        load_parameters(small_book, "mine")


def test_the_book_s_own_profiles_are_valid():
    book = find_book()
    given = {name: load_parameters(book, name) for name in ("offline", "paper", "smoke")}
    assert {f"{name}.yml" for name in given} == {p.name for p in (book.root / "profiles").iterdir()}
    assert not any(given["offline"].values())  # the chapters' own defaults
    places = [
        chapter.get(key, "mnist") for chapter in PAPER.values() for key in ("model", "dataset")
    ]
    assert all("@" in place or place == "mnist" for place in places)  # with a revision


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """A data set on disk with the splits of the paper's: the book's own reviews."""
    folder = tmp_path_factory.mktemp("reviews")
    texts = lrp.load_texts(limit=24, seed=0)
    table = pd.DataFrame({"text": list(texts), "label": texts.labels})
    for split in ("validation", "test"):
        table.to_csv(folder / f"{split}.csv", index=False)
    return str(folder)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """A model of twelve layers, as the paper's have, with weights that were drawn."""
    folder = tmp_path_factory.mktemp("models") / NAME
    return str(tiny.save(tiny.classifier(layers=12, hidden=32, heads=2), folder))


def lines_of_make_paper(*given):
    """What `make paper` calls the package with, line by line."""
    command = ["make", "--dry-run", "--no-print-directory", "paper", *given]
    said = subprocess.check_output(command, cwd=find_book().root, text=True)
    words = shlex.split(said.replace("\\\n", " "), comments=True)
    starts = [n for n, word in enumerate(words) if word.endswith("bin/lrputils")]
    return [words[n + 1 : end] for n, end in pairwise([*starts, len(words)])]


@pytest.fixture(scope="session")
def measured(reviews, stand_in, tmp_path_factory):
    """The folders that `make paper` measures first, on a stand-in, with a kill in the middle."""
    out, folders = tmp_path_factory.mktemp("paper"), {}
    smaller = {"--model": stand_in, "--dataset": reviews, "--limit": "4", "--part-size": "2"}
    for verb, *words in lines_of_make_paper():
        if verb != "evaluate":
            continue
        for option, value in smaller.items():
            words[words.index(option) + 1] = value
        place = words[words.index("--out") + 1]
        folders[place] = words[words.index("--out") + 1] = str(out / place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets, "measure_part", killed_after(1, datasets.measure_part))
            assert main([verb, *words, "--quiet"]) == 130
        first = {p: p.stat().st_mtime_ns for p in Path(folders[place]).rglob("*.parquet")}
        assert main([verb, *words, "--quiet"]) == 0
        assert first
        assert first == {path: path.stat().st_mtime_ns for path in first}
    return folders


def killed_after(count, real):
    """`real`, which is interrupted after so many calls."""
    calls = iter(range(count))

    def call(*given):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*given)

    return call


def test_make_paper_measures_what_its_profiles_read_and_then_builds():
    lines = lines_of_make_paper()
    assert [verb for verb, *_ in lines] == ["evaluate", "evaluate", "build"]
    written = {line[line.index("--out") + 1] for line in lines if "--out" in line}
    read = {
        given[name]
        for given in PAPER.values()
        for name in ("rows", "reviews_rows")
        if name in given
    }
    assert read == written
    assert lines[-1][-2:] == ["--processes", "1"]


def test_make_paper_says_first_what_it_takes(reviews, stand_in, tmp_path, capsys):
    for verb, *words in lines_of_make_paper("DRY_RUN=1"):
        for option, value in {"--model": stand_in, "--dataset": reviews, "--limit": "2"}.items():
            words[words.index(option) + 1] = value
        place = words.index("--out") + 1
        assert main([verb, *words[:place], str(tmp_path / "out")]) == 0
        assert " on one cpu" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.rehearsal
@pytest.mark.parametrize("name", PAPER)
def test_the_paper_profile_shows_what_it_is_for(name, reviews, stand_in, measured, tmp_path):
    """Every line is given but for the model, the data and their number."""
    found = find_book()
    book = type(found)(found.root, tmp_path)
    small = load_parameters(book, "smoke").get(name, {})
    given = {**PAPER[name], **{k: v for k, v in small.items() if k != "max_tokens"}}
    for folder in ("rows", "reviews_rows"):
        if folder in given:
            given |= {folder: measured[given[folder]], "limit": 4}
    if "model" in given:
        given["model"] = stand_in
    if given.get("dataset") == "mnist":
        given["dataset"] = "digits"
    elif "dataset" in given:
        given["dataset"] = reviews
    executed = execute(book, {name: given}, Execution("paper"))
    notebook = nbformat.read(executed[name], 4)
    check = {"03_sst": _is_table_2, "04_imdb": _is_table_2, "05_layer_ablation": _is_figure_2}
    if name in check:
        texts = {
            task: lrp.load_texts(reviews, split=split, limit=4, seed=0)
            for task, split in {"SST-2": "validation", "IMDB": "test"}.items()
        }
        check[name](notebook, lrp.load_classifier(stand_in), texts, given)


def _is_table_2(notebook, clf, texts, given):
    """All methods' r, beside the paper's, and LeRF, MoRF and Δ."""
    assert read_answer(notebook).startswith(f"On {NAME}, 4 texts: ")
    tables = read_tables(notebook)
    data, task = ("imdb", "IMDB") if "imdb" in given["rows"] else ("sst", "SST-2")
    how = {"truncate": True, "progress": False, "chunk": CHUNKS[task]}
    rows = lrp.evaluate(clf, texts[task], ["attnlrp"], **how).rows
    assert_means(tables, rows[rows.method == "attnlrp"], NAME, data)
    key = NAME if data == "imdb" else "r, sum to one"
    shown = tables["tab-imdb-r" if data == "imdb" else "tab-sst-2"].loc[key]
    assert {lrp.METHODS[name].label for name in ("attnlrp", "cp-lrp", "ig")} <= {*shown.index}
    assert shown.paper["AttnLRP"] == paper.printed("table_2").r[data, "attnlrp"]


def _is_figure_2(notebook, clf, texts, given):
    """An answer, six panels of r and two of Δ: sets of layers beside the printed ones, as
    `evaluate` measures them."""
    assert read_answer(notebook).count(f"On {NAME}, 4 texts: ") == 2
    tables = read_tables(notebook)
    for name, panels in (("fig-ablation", 6), ("fig-ablation-delta", 2)):
        figure = tables[name].index
        assert len(figure.droplevel([2, 3]).unique()) == panels
        assert sum(figure.get_level_values(2) == NAME) == 12 * panels
    for task, shown in layers.TASKS.items():
        printed = paper.ablations(task)
        gains = printed.r.loc[["front", "back", "single"]] - printed.r["attnlrp", 0]
        drawn = tables["fig-ablation"].value.xs("the paper", level=2).loc[shown]
        assert [*drawn] == pytest.approx([*gains])
        asked = at_every_readout("attnlrp", model=clf.model)
        asked.append(lrp.LayerSweep(["word", "sum"]))
        how = {"truncate": True, "progress": False, "chunk": CHUNKS[task]}
        rows = lrp.evaluate(clf, texts[task], asked, **how).rows
        assert_sets(tables, rows, NAME, shown)
