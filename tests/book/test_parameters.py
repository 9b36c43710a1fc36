"""A chapter's parameters: found, declared, read from a command line, and checked in a run."""

from contextlib import nullcontext
from types import SimpleNamespace

import IPython
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from experiments import linear_attention
from lrputils.book.layout import BookError, find_book
from lrputils.book.notebooks import METADATA, read_text
from lrputils.book.parameters import check_given, declared, from_command_line
from lrputils.book.values import WANTED, check_parameters, check_value
from lrputils.model import readout
from tests.book.acceptance import unread


def notebook(parameters: str):
    cell = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    return new_notebook(cells=[cell], metadata=METADATA)


@pytest.fixture
def chapter(small_book):
    return read_text(small_book.chapter("1"))


def test_names_types_and_defaults_are_read(chapter):
    parameters = declared(chapter)
    assert {name: p.default for name, p in parameters.items()} == {
        "factor": 2.0,
        "count": None,
        "names": ["a"],
        "unused": "x",
    }
    assert parameters["count"].wants == ["int", "None"]
    assert parameters["names"].wants == ["list of str"]


def test_a_parameter_that_no_cell_reads_is_found(chapter):
    assert unread(chapter) == ["unused"]


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
        check_given(declared(chapter), "c", given)


@pytest.mark.parametrize("value", ["f()", "2 * 3", "other"])
def test_only_plain_values_may_be_parameters(value):
    with pytest.raises(ValueError, match="malformed node or string"):
        declared(notebook(f"a = {value}"))


def test_the_command_line_gives_typed_values(chapter):
    texts = ["factor=1e-3", "count=7", "names=[x, y]", "unused=12"]
    assert from_command_line(texts, declared(chapter)) == {
        "factor": 1e-3,
        "count": 7,
        "names": ["x", "y"],
        "unused": "12",
    }
    texts = ["labels= bad, good", r"template=Text: {text}\nIs it A or B?"]  # no YAML, and a blank
    given = from_command_line(texts, declared(notebook("labels = ''\ntemplate = ''")))
    assert [f"{name}={value}" for name, value in given.items()] == texts


ALLOWED = {
    "readout": readout.READOUTS,
    "removal": linear_attention.REMOVALS,
    **linear_attention._CHOICES,
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_choices_are_the_package_s_own(name):
    assert set(WANTED[name][1].removeprefix("one of ").split(", ")) == set(ALLOWED[name])


def test_the_chapters_defaults_keep_the_rules_and_each_rule_has_a_parameter():
    book, found = find_book(), {}
    for chapter in book.chapters().values():
        for name, parameter in declared(read_text(chapter)).items():
            check_value(name, parameter.default)
            found[name] = parameter
    assert found.keys() >= WANTED.keys()


@pytest.mark.parametrize(
    ("cells", "variables", "complaint"),
    [
        (["limit = 48"], {"limit": 0, "anything": 1}, None),  # run by hand: nothing was injected
        (["limit = 48", "# Parameters\nlimit = 3\n", "other = 1"], {"limit": 3, "other": 1}, None),
        (["limit = 48", "# Parameters\nlimt = 3\n"], {"limt": 3}, "no parameter 'limt'; it has: l"),
        (["# Parameters\nlimit = 3\n"], {"limit": 3}, "no parameter 'limit'; it has: none"),
        (["limit = 48", "# Parameters\nlimit = 0\n"], {"limit": 0}, "limit=0 must be 1 or more"),
    ],
)
def test_a_chapter_refuses_what_papermill_put_in_by_mistake(
    monkeypatch, cells, variables, complaint
):
    """In a notebook that ran these cells."""
    namespace = {"In": ["", *cells, "check_parameters()"], **variables}
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns=namespace))
    with pytest.raises(ValueError, match=complaint) if complaint else nullcontext():
        check_parameters()


def test_a_chapter_refuses_a_language_model_without_a_template(monkeypatch, tmp_path):
    """Also where nobody but the notebook's kernel looks at the parameters."""
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    namespace = {"In": [""], "model": str(tmp_path), "template": None}
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns=namespace))
    with pytest.raises(ValueError, match="is a language model, and a classifier only by a templ"):
        check_parameters()
    namespace["template"] = "Review: {text} It was"
    check_parameters()


@pytest.mark.parametrize("name", ["07b_backward", "07b", "7b", "x/07b_backward.ipynb"])
def test_a_chapter_is_found_by_name_number_or_file(name):
    assert find_book().chapter(name).stem == "07b_backward"


def test_the_book_is_found_from_within(small_book):
    assert find_book(small_book.root / "chapters").root == small_book.root.resolve()


def test_outside_of_any_book_the_package_s_own_is_taken(tmp_path):
    assert (find_book(tmp_path).root / "pyproject.toml").is_file()
