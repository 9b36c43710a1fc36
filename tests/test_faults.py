"""Hostile or unlucky files: what a folder names, what a page shows, what a digest takes in."""

import json
import os
import shutil
import sys
import tempfile

import nbformat
import pandas as pd
import pytest
from datasets import Dataset

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.book.notebooks import read_text
from lrputils.book.results_page import write_results_page
from lrputils.data import files, given
from lrputils.model.classifier import EMBEDDED
from lrputils.report.display import ANSWER

TABLE = pd.DataFrame({"text": ["a film", "a dull film"], "label": [1, 0]})


@pytest.fixture
def secret(tmp_path):
    """A file beside the folder that is read."""
    TABLE.to_csv(tmp_path / "secret.csv", index=False)
    (tmp_path / "data").mkdir()
    TABLE.to_csv(tmp_path / "data/test.csv", index=False)
    return tmp_path / "data"


def test_what_save_to_disk_wrote_names_no_file_outside(secret, tmp_path):
    held = tmp_path / "held"
    Dataset.from_pandas(TABLE).save_to_disk(str(held))
    assert len(lrp.load_texts(held)) == 2
    (arrow,) = held.glob("*.arrow")
    arrow.rename(tmp_path / "secret.arrow")
    state = held / "state.json"
    state.write_text(state.read_text().replace(arrow.name, "../secret.arrow"))
    with pytest.raises(ValueError, match="lies outside of it and is not read"):
        lrp.load_texts(held)


@pytest.mark.parametrize("place", ["http://localhost/x.csv", "/etc/passwd", "a/../../b.csv"])
def test_addresses_and_places_elsewhere_are_not_inside(tmp_path, place):
    with pytest.raises(ValueError, match="lies outside of it"):
        files.inside(tmp_path, place)
    assert files.inside(tmp_path, "a/b.csv") == tmp_path / "a/b.csv"


def test_files_that_are_cut_elsewhere_are_others(tmp_path):
    def identity(*contents):
        for number, content in enumerate(contents):
            (tmp_path / f"{number}.csv").write_text(content)
        return files.identity([tmp_path / f"{n}.csv" for n in range(len(contents))])

    assert identity("text\nab\n", "c\n") != identity("text\na", "b\nc\n")
    assert identity("text\n") == files.digest([b"text\n"])


def test_a_folder_that_is_called_as_the_book_s_own_texts_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews").mkdir()
    with pytest.warns(
        UserWarning, match=r"dataset='reviews' is this book's own; \./reviews is the"
    ):
        lrp.load_texts("reviews", limit=1)


def test_a_tokenizer_is_known_without_a_file(monkeypatch):
    before = lrp.load_classifier().parts

    def full(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert lrp.load_classifier().parts == before


def test_names_are_text_on_the_page_of_results(tmp_path):
    said = "On <img src=x onerror=alert(1)>\u202e: 0.50"
    told = {ANSWER: {"own": said}}
    output = nbformat.v4.new_output("display_data", {"text/plain": said}, metadata=told)
    cell = nbformat.v4.new_code_cell("", outputs=[output])
    path = tmp_path / "03_sst.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    (tmp_path / "target/chapters").mkdir(parents=True)
    page = write_results_page({"03_sst": path}, tmp_path / "target", "<b>mine</b>\x1b")
    text = page.read_text()
    assert not [harm for harm in ("<img", "<b>", "\x1b", "\u202e") if harm in text]
    assert "0.50" in text


def test_an_error_rearranges_no_terminal(capsys):
    assert main(["explain", "a film", "--out", "\x1b[31m\u202e/x.html"]) == 1
    said = capsys.readouterr().err
    assert not {"\x1b", "\u202e"} & {*said}
    assert "⟨001B⟩" in said


NAMING = """---
configs: [{config_name: default, data_files: [{split: test, path: %s}]}]
---
"""
BOMB = "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in zip("abcd", "bcde", strict=True))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "README.md",
            NAMING % "../secret.csv",
            "secret.csv, which lies outside of it and is not read",
        ),
        (
            "README.md",
            NAMING % "BESIDE/secret.csv",
            "secret.csv, which lies outside of it and is not read",
        ),
        ("README.md", f"---\na: &a [x]\n{BOMB}---\n", r"README\.md has an alias \(\*name\)"),
        ("test.csv", "text\n" + "a film " * 10, r"data.* has 70 characters in row 0, and 60 are"),
        ("README.md", "---\na: !!python/name:os\n---\n", "'data' cannot be loaded: Constructor"),
        ("README.md", "---\na: [\n---\n", "cannot be loaded: ParserError"),
        ("data.py", "import datasets", "'data' cannot be loaded: .*scripts are no longer"),
        ("test.csv", ",".join(map(str, range(99))) + "\n" + "x," * 98, r"'11', … \(99 in all\)\]"),
    ],
)
def test_a_folder_of_data_is_refused_in_a_sentence(secret, file, text, said, monkeypatch):
    monkeypatch.setattr(given, "LONGEST", 60)
    (secret / file).write_text(text.replace("BESIDE", str(secret.parent)))
    with pytest.raises(ValueError, match=said) as refused:
        lrp.load_texts(secret)
    assert "\n" not in str(refused.value)


def test_a_model_of_millions_of_layers_is_not_built(tmp_path):
    config = json.loads((EMBEDDED / "config.json").read_text())
    shutil.copytree(EMBEDDED, tmp_path / "deep")
    (tmp_path / "deep/config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**7}))
    with pytest.raises(ValueError, match=r"deep' states 10,000,000 layers, more than 1,000"):
        lrp.load_classifier(tmp_path / "deep")


def test_a_chapter_with_a_broken_front_matter_is_named(tmp_path):
    (tmp_path / "mine.md").write_text("---\njupytext: [\n---\n")
    with pytest.raises(ValueError, match=r"The chapter mine\.md cannot be loaded: ParserError"):
        read_text(tmp_path / "mine.md")


def test_a_list_of_which_only_the_head_is_read_ends_quietly(monkeypatch):
    end, start = os.pipe()
    os.close(end)
    monkeypatch.setattr(sys, "stdout", os.fdopen(start, "w"))
    assert main(["methods"]) == 1
    sys.stdout.flush()
