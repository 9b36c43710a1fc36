from contextlib import nullcontext
from types import SimpleNamespace

import IPython
import pytest

from experiments import linear_attention
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from lrputils.book.parameters import declared
from lrputils.book.values import WANTED, check_parameters, check_value
from lrputils.model import readout

ALLOWED = {
    "readout": readout.READOUTS,
    "removal": linear_attention.REMOVALS,
    **linear_attention.network._CHOICES,
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_choices_are_the_package_s_own(name):
    assert set(WANTED[name][1].removeprefix("one of ").split(", ")) == set(ALLOWED[name])


def test_the_chapters_defaults_keep_the_rules_and_each_rule_has_a_parameter():
    book, found = find_book(), {}
    for chapter in book.chapters().values():
        for name, parameter in declared(read_text(chapter), chapter.stem).items():
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
