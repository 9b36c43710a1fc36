"""The page of the package: its names can be imported as they stand, its methods are all of them."""

import ast
import re
from importlib import import_module

import pytest

import lrputils as lrp
from lrputils.book.layout import find_book

PAGE = (find_book().root / "chapters/api.md").read_text(encoding="utf-8")
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


def test_the_tables_list_every_method_with_its_label_and_options():
    labels = {row[0]: row[1] for row in ROWS if len(row) > 2}
    options = {
        name: {key: ast.literal_eval(value) for key, value in re.findall(r"`(\w+)=(.+?)`", given)}
        for name, given in (row for row in ROWS if len(row) == 2)
    }
    methods = {f"`{name}`": method for name, method in lrp.METHODS.items()}
    assert labels == {name: method.label for name, method in methods.items()}
    assert options == {
        name: {key: option.default for key, option in method.options.items()}
        for name, method in methods.items()
    }


def test_a_method_s_price_is_the_page_s_at_its_defaults():
    prices = {row[0].strip("`"): row[2] for row in ROWS if len(row) > 2}
    for name, method in lrp.METHODS.items():
        first = prices[name].split(";")[0].removeprefix("up to ").replace("*", "")
        first = re.sub(
            r"`(\w+)`", lambda option, m=method: str(m.options[option[1]].default), first
        )
        for text in (first, method.formula):
            assert method.passes(40) == pytest.approx(eval(text.replace("·", "*"), {"n": 40})), name
    assert all(name in repr(lrp.METHODS) and name in lrp.METHODS._repr_html_() for name in prices)


def test_every_public_name_is_on_the_page():
    written = set(re.findall(r"\b(?:lrputils|lrp)\.(\w+)", PAGE))
    assert not set(lrp.__all__) - written


def test_the_examples_of_the_page_run(classifier):
    """Those of other tools run where these are installed: `make peers`."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    inputs = classifier.encode(["a fine film", "not bad"])
    known = {"lrp": lrp, "clf": classifier, "inputs": inputs}
    for block in (x for x in blocks if "clf" in x and not x.startswith(("from captum", "import"))):
        exec(block, known)
    assert known["sweep"].shape == (3, *known["scores"].shape)
    assert known["low"] <= known["high"]
