from __future__ import annotations

import pytest

from lrputils.book import notebooks
from tests.book.acceptance import differences


def test_the_same_text_gives_the_same_notebook(small_book):
    chapter = small_book.chapter("1")
    first, second = notebooks.read_text(chapter.text), notebooks.read_text(chapter.text)
    assert first == second
    assert len({cell["id"] for cell in first.cells}) == len(first.cells)


def test_equal_cells_get_different_ids(tmp_path):
    text = tmp_path / "t.md"
    text.write_text("```{code-cell} ipython3\n1\n```\n\n```{code-cell} ipython3\n1\n```\n")
    ids = [cell["id"] for cell in notebooks.read_text(text).cells]
    assert len(set(ids)) == len(ids) == 2


def test_twins_differ_in_what_was_edited(small_book):
    chapter = small_book.chapter("1")
    notebooks.write_notebook(notebooks.read_text(chapter.text), chapter.notebook)
    assert differences(chapter.text, chapter.notebook) == []
    chapter.text.write_text(chapter.text.read_text().replace("1 / factor", "2 / factor"))
    (difference,) = differences(chapter.text, chapter.notebook)
    assert "cell 4" in difference


def test_a_missing_twin_names_the_command(small_book):
    chapter = small_book.chapter("1")
    (difference,) = differences(chapter.text, chapter.notebook)
    assert "lrputils execute 01_short" in difference


def test_a_failing_write_leaves_the_old_file_and_no_draft(small_book, monkeypatch):
    chapter = small_book.chapter("1")
    chapter.notebook.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(notebooks.nbformat, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        notebooks.write_notebook(notebooks.read_text(chapter.text), chapter.notebook)
    assert chapter.notebook.read_text() == "old"
    assert not list(chapter.notebook.parent.glob(".*"))
