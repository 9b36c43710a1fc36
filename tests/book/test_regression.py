from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from lrputils.book.execution import execute_profile, refresh_twins
from lrputils.book.layout import find_book
from lrputils.book.pairing import read_notebook, write_notebook
from lrputils.book.parameters import load_profile
from lrputils.book.regression import Tolerance, settle, stated_tolerance, texts_agree, values_agree
from lrputils.report.display import TABLE


@pytest.mark.parametrize(
    ("ours", "reference", "agree"),
    [
        ("r = 0.742", "r = 0.742", True),
        ("r = 0.74200001", "r = 0.742", True),
        ("r = 0.7421", "r = 0.7420", False),
        ("r = 0.742", "q = 0.742", False),
        ("12 maps", "13 maps", False),
        ("12.0", "8.0", False),
        ("12.0000001", "12.0", True),
        ("-0.5", "0.5", False),
        ("1.2e-17", "3.0e-17", True),
        ("1.2e-3", "3.0e-3", False),
        ("[1, 2, 3]", "[1, 2, 4]", False),
        ("tensor([1.00001, 2.0])", "tensor([1.0, 2.0])", True),
        ("nan", "nan", True),
        ("nan", "0.5", False),
        ("layer2 0.5", "layer3 0.5", False),
        ("1/2", "1/3", False),
        ("0.5 0.5", "0.5", False),
        ("bert-base-2.0", "bert-base-2.0", True),
    ],
)
def test_numbers_are_compared_as_numbers(ours, reference, agree):
    assert texts_agree(ours, reference) is agree


def test_nested_values_are_compared_leaf_by_leaf():
    assert values_agree({"a": [1, 2.00001]}, {"a": [1, 2.0]})
    assert not values_agree({"a": [1, 2.1]}, {"a": [1, 2.0]})
    assert not values_agree({"a": [1]}, {"a": [1, 2.0]})
    assert not values_agree({"a": 2}, {"a": 1})


def table(value: float, text: str) -> list[dict]:
    precise = {"index": ["a"], "columns": {"r": [value]}}
    return [{"output_type": "display_data", "data": {"text/plain": text, TABLE: precise}}]


def test_a_rounded_table_is_held_to_its_full_precision():
    reference = table(0.7425001, "a  0.743")
    assert settle(table(0.7424999, "a  0.742"), reference) == reference
    moved = settle(table(0.75, "a  0.743"), reference)
    assert moved != reference
    relabelled = settle(table(0.7425001, "b  0.743"), reference)
    assert relabelled != reference


def test_a_wider_tolerance_needs_a_reason():
    wide = stated_tolerance({"regression": {"atol": 1e-2, "reason": "float32 sums"}})
    assert wide == Tolerance(atol=1e-2)
    assert texts_agree("0.001", "0.002", wide)
    assert not texts_agree("0.1", "0.2", wide)
    with pytest.raises(ValueError, match="reason"):
        stated_tolerance({"regression": {"rtol": 1e-2}})


def test_a_figure_has_to_be_there_and_may_be_drawn_differently():
    def picture(svg: str) -> list[dict]:
        return [{"output_type": "display_data", "data": {"image/svg+xml": svg, "text/plain": "p"}}]

    reference = picture("<svg>1</svg>")
    assert settle(picture("<svg>2</svg>"), reference) == reference
    assert settle(picture(""), reference) != reference
    bare = [{"output_type": "display_data", "data": {"text/plain": "p"}}]
    assert settle(bare, reference) != reference


def nbval(book, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", *more]
    return subprocess.run(command, capture_output=True, text=True, cwd=book.root, check=False)


@pytest.fixture
def committed(small_book):
    paths = execute_profile(
        small_book, small_book.chapters(), load_profile(small_book), progress=False
    )
    (twin,) = refresh_twins(small_book, paths)
    return small_book, twin


def test_plain_nbval_runs_tests_and_chapters_once(committed):
    book, twin = committed
    shutil.copy(find_book().root / "pyproject.toml", book.root)
    shutil.copy(twin, book.build_folder / "executed")
    (book.root / "tests").mkdir()
    (book.root / "tests/test_one.py").write_text("def test_one():\n    pass\n")
    run = nbval(book)
    assert run.returncode == 0, run.stdout
    assert "4 passed" in run.stdout
    assert "4 tests collected" in nbval(book, ".", "--collect-only").stdout


def test_a_figure_that_is_gone_fails_nbval(committed):
    book, twin = committed
    notebook = read_notebook(twin)
    notebook.cells[-1].outputs[0].data["image/png"] = "aGk="
    write_notebook(notebook, twin)
    run = nbval(book)
    assert run.returncode == 1, run.stdout
    assert "Missing output fields" in run.stdout


@pytest.mark.parametrize(
    ("was", "becomes"), [("value 1.0 of", "value 1.01 of"), ('"0.5"', '"0.501"')]
)
def test_one_changed_number_fails_nbval(committed, was, becomes):
    book, twin = committed
    text = twin.read_text()
    assert was in text
    twin.write_text(text.replace(was, becomes))
    run = nbval(book)
    assert run.returncode == 1, run.stdout
    assert "1 failed" in run.stdout


def test_drift_within_the_tolerance_passes_nbval(committed):
    book, twin = committed
    twin.write_text(twin.read_text().replace("value 1.0 of", "value 1.00001 of"))
    assert nbval(book).returncode == 0
