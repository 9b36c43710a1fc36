from __future__ import annotations

from lrputils.book import notebooks
from tests.book.acceptance import differences


def test_equal_cells_get_different_ids(tmp_path):
    text = tmp_path / "t.md"
    text.write_text("```{code-cell} ipython3\n1\n```\n\n```{code-cell} ipython3\n1\n```\n")
    ids, again = ([cell["id"] for cell in notebooks.read_text(text).cells] for _ in range(2))
    assert ids == again
    assert len(set(ids)) == len(ids) == 2


def test_twins_differ_in_what_was_edited(small_book):
    chapter = small_book.chapter("1")
    notebooks.write_notebook(notebooks.read_text(chapter), chapter.with_suffix(".ipynb"))
    assert differences(chapter, chapter.with_suffix(".ipynb")) == []
    chapter.write_text(chapter.read_text().replace("1 / factor", "2 / factor"))
    (difference,) = differences(chapter, chapter.with_suffix(".ipynb"))
    assert "cell 4" in difference
    chapter.with_suffix(".ipynb").unlink()
    (difference,) = differences(chapter, chapter.with_suffix(".ipynb"))
    assert "lrputils execute 01_short" in difference
