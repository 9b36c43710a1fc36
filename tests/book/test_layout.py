from __future__ import annotations

import pytest

from lrputils.book.layout import find_book


@pytest.mark.parametrize("name", ["01_short", "01", "1", "01_short.md", "chapters/01_short.ipynb"])
def test_a_chapter_is_found_by_name_number_or_file(small_book, name):
    assert small_book.chapter(name).stem == "01_short"


@pytest.mark.parametrize(("number", "name"), [("7", "07_remedy"), ("7b", "07b_backward")])
def test_a_second_page_of_a_chapter_has_a_letter(number, name):
    assert find_book().chapter(number).stem == name


def test_the_book_is_found_from_within(small_book):
    assert find_book(small_book.root / "chapters").root == small_book.root.resolve()


def test_outside_of_any_book_the_package_s_own_is_taken(tmp_path):
    assert (find_book(tmp_path).root / "pyproject.toml").is_file()
