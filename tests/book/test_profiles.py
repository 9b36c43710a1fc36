from __future__ import annotations

import pandas as pd
import pytest

import lrputils as lrp
from lrputils.book.execution import execute
from lrputils.book.layout import BookError, Execution, find_book
from lrputils.book.parameters import load_parameters

PAPER = [("paper", chapter) for chapter in load_parameters(find_book(), "paper")]
PAPER = [*PAPER, ("paper-imdb", "05_layer_ablation")]


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
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(small_book, text, complaint):
    (small_book.root / "profiles/mine.yml").write_text(text)
    with pytest.raises(BookError, match=complaint):
        load_parameters(small_book, "mine")


def test_the_book_s_own_profiles_are_valid():
    book = find_book()
    given = {
        name: load_parameters(book, name) for name in ("offline", "paper", "paper-imdb", "smoke")
    }
    assert {f"{name}.yml" for name in given} == {p.name for p in (book.root / "profiles").iterdir()}
    assert not any(given["offline"].values())  # the chapters' own defaults
    chapters = [chapter for name in ("paper", "paper-imdb") for chapter in given[name].values()]
    places = [chapter.get(key, "mnist") for chapter in chapters for key in ("model", "dataset")]
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


@pytest.mark.rehearsal
@pytest.mark.parametrize(("profile", "name"), PAPER)
def test_the_paper_profiles_run_on_what_the_book_carries(profile, name, reviews, tmp_path):
    """Every line is given but for the model, the data and their number."""
    found = find_book()
    book = type(found)(found.root, tmp_path)
    given, small = (load_parameters(book, which)[name] for which in (profile, "smoke"))
    given = {**given, **{k: v for k, v in small.items() if k != "max_tokens"}}
    given.pop("model", None)
    if given.get("dataset") == "mnist":
        given["dataset"] = "digits"
    elif "dataset" in given:
        given["dataset"] = reviews
    executed = execute(book, {name: given}, Execution(profile))
    assert executed[name].is_file()
