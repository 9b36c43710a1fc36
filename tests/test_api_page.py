"""The page of the package: its names can be imported as they stand, its methods are all of them."""

from __future__ import annotations

import ast
import re
from importlib import import_module

import pytest

import lrputils as lrp
from lrputils.book.layout import find_book

PAGE = (find_book().chapters_folder / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^\.\. auto\w+:: (\S+)$", PAGE, re.M)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `")
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_where_the_page_says(name):
    module, _, last = name.rpartition(".")
    found = getattr(import_module(module), last)
    if last in lrp.__all__ and getattr(lrp, last) is found:
        assert name == f"lrputils.{last}"


def test_the_table_lists_every_method_with_its_label_and_options():
    options = {
        name.strip("`"): (label, re.findall(r"`(\w+)=(.+?)`", given))
        for name, label, _, _, given, _, _ in ROWS
    }
    written = {
        name: (label, {key: ast.literal_eval(value) for key, value in pairs})
        for name, (label, pairs) in options.items()
    }
    assert written == {
        name: (method.label, {key: option.default for key, option in method.options.items()})
        for name, method in lrp.METHODS.items()
    }
