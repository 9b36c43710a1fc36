"""The committed chapters: executed, clean, equal to their texts, and listed."""

from __future__ import annotations

import re

import pytest

from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from tests.book.acceptance import problems, unread

BOOK = find_book()
CHAPTERS = BOOK.chapters()


def test_there_are_chapters():
    assert CHAPTERS


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.name)
class TestChapter:
    def test_it_may_land(self, chapter):
        assert problems(chapter.text, chapter.notebook) == []

    def test_every_parameter_is_read(self, chapter):
        assert unread(read_text(chapter.text), chapter.name) == []

    def test_what_it_defines_fits_a_screen(self, chapter):
        for cell in read_text(chapter.text).cells:
            if cell.cell_type == "code" and re.search(r"^\s*(def|class) ", cell.source, re.M):
                assert len(cell.source.splitlines()) <= 40

    def test_its_code_fits_the_page(self, chapter):
        for cell in read_text(chapter.text).cells:
            if cell.cell_type == "code":
                assert max(map(len, cell.source.splitlines()), default=0) <= 75

    def test_it_is_in_the_table_of_contents(self, chapter):
        toc = (BOOK.root / "_toc.yml").read_text(encoding="utf-8")
        listed = re.findall(r"^(?:root| +- file): (.+)$", toc, re.M)
        assert f"chapters/{chapter.name}" in listed
