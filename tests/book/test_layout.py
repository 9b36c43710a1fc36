from __future__ import annotations

import os
import shutil

import jupytext.cli
import pytest

from lrputils.book.layout import find_book


@pytest.mark.parametrize("name", ["07b_backward", "07b", "7b", "x/07b_backward.ipynb"])
def test_a_chapter_is_found_by_name_number_or_file(name):
    assert find_book().chapter(name).stem == "07b_backward"


def test_the_book_is_found_from_within(small_book):
    assert find_book(small_book.root / "chapters").root == small_book.root.resolve()


def test_outside_of_any_book_the_package_s_own_is_taken(tmp_path):
    assert (find_book(tmp_path).root / "pyproject.toml").is_file()


@pytest.mark.parametrize("later", [".md", ".ipynb"])
def test_jupytext_s_sync_leaves_a_fresh_clone_alone(tmp_path, later):
    """A clone's files are as old as one another; the notebook is never the truth."""
    book = find_book()
    shutil.copy(book.root / "pyproject.toml", tmp_path)
    files = [
        tmp_path / "chapters" / book.chapter("9").with_suffix(s).name for s in (".md", ".ipynb")
    ]
    files[0].parent.mkdir()
    for file in files:
        shutil.copy(book.root / "chapters" / file.name, file)
        os.utime(file, (0, 10_000 * (file.suffix == later)))
    before = [file.read_bytes() for file in files]
    jupytext.cli.jupytext(["--sync", *map(str, files)])
    assert [file.read_bytes() for file in files] == before
