import pytest

from lrputils.book.layout import find_book


@pytest.mark.parametrize("name", ["07b_backward", "07b", "7b", "x/07b_backward.ipynb"])
def test_a_chapter_is_found_by_name_number_or_file(name):
    assert find_book().chapter(name).stem == "07b_backward"


def test_the_book_is_found_from_within(small_book):
    assert find_book(small_book.root / "chapters").root == small_book.root.resolve()


def test_outside_of_any_book_the_package_s_own_is_taken(tmp_path):
    assert (find_book(tmp_path).root / "pyproject.toml").is_file()
