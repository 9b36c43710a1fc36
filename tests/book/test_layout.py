from __future__ import annotations

import pytest

from lrputils.book.layout import BookError, find_book


@pytest.mark.parametrize("name", ["01_short", "01", "1", "01_short.md", "chapters/01_short.ipynb"])
def test_a_chapter_is_found_by_name_number_or_file(small_book, name):
    assert small_book.chapter(name).name == "01_short"


def test_an_unknown_chapter_is_refused_with_the_list(small_book):
    with pytest.raises(BookError, match=r"no chapter '07'.*01_short"):
        small_book.chapter("07")


def test_the_book_is_found_from_within(small_book):
    assert find_book(small_book.chapters_folder).root == small_book.root.resolve()


def test_outside_of_any_book_the_package_s_own_is_taken(tmp_path):
    assert (find_book(tmp_path).root / "pyproject.toml").is_file()
