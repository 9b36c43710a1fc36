import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lrputils.book.layout import BookError
from lrputils.book.notebooks import read_text
from lrputils.book.parameters import check_given, declared, from_command_line
from tests.book.acceptance import unread


def notebook(parameters: str, *cells: str):
    first = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    return new_notebook(cells=[first, *map(new_code_cell, cells)])


@pytest.fixture
def chapter(small_book):
    return read_text(small_book.chapter("1"))


def test_names_types_and_defaults_are_read(chapter):
    parameters = declared(chapter, "c")
    assert {name: p.default for name, p in parameters.items()} == {
        "factor": 2.0,
        "count": None,
        "names": ["a"],
        "unused": "x",
    }
    assert parameters["count"].wants == ["int", "None"]
    assert parameters["names"].wants == ["list of str"]


def test_a_parameter_that_no_cell_reads_is_found(chapter):
    assert unread(chapter, "c") == ["unused"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"fctor": 1.0}, r"no parameter 'fctor'; it has: factor \(float or int, default 2.0\)"),
        ({"factor": "much"}, "factor = 'much' is of type str, wanted: float"),
        ({"factor": True}, "of type bool"),
        ({"count": 1.5}, "wanted: int or None"),
        ({"names": "a"}, "wanted: list of str"),
        ({"names": [1]}, "wanted: list of str"),
        ({"factor": None}, "of type None,"),
    ],
)
def test_what_does_not_fit_is_refused(chapter, given, complaint):
    with pytest.raises(BookError, match=complaint):
        check_given(declared(chapter, "c"), "c", given)


@pytest.mark.parametrize("lines", ["a = f()", "a, b = 1, 2", "import os", "a: int = 1"])
def test_only_plain_values_may_be_parameters(lines):
    with pytest.raises(BookError, match="plain value"):
        declared(notebook(lines), "c")


def test_the_command_line_gives_typed_values(chapter):
    texts = ["factor=1e-3", "count=7", "names=[x, y]", "unused=12"]
    assert from_command_line(texts, declared(chapter, "c")) == {
        "factor": 1e-3,
        "count": 7,
        "names": ["x", "y"],
        "unused": "12",
    }
    texts = ["labels= bad, good", r"template=Text: {text}\nIs it A or B?"]  # no YAML, and a blank
    given = from_command_line(texts, declared(notebook("labels = ''\ntemplate = ''"), "c"))
    assert [f"{name}={value}" for name, value in given.items()] == texts
