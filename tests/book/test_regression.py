from __future__ import annotations

import re
import shutil
import subprocess
import sys

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lrputils.book.execution import execute, refresh_twins
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text, write_notebook
from lrputils.book.parameters import load_parameters
from lrputils.book.regression import (
    DOUBLE,
    SINGLE,
    Tolerance,
    last_digit,
    settle,
    stated_tolerance,
    values_agree,
)
from lrputils.report.display import TABLE


@pytest.mark.parametrize(
    ("ours", "reference", "agree"),
    [
        ("r = 0.74200001", "r = 0.742", True),
        ("r = 0.7421", "r = 0.7420", False),
        ("r = 0.742", "q = 0.742", False),
        ("12 maps", "13 maps", False),
        ("-0.5", "0.5", False),
        ("1.2e-17", "3.0e-17", True),
        ("tensor([1.00001, 2.0])", "tensor([1.0, 2.0])", True),
        ("small 0.0100200, large 3.0", "small 0.0100000, large 3.0", True),  # 3e-5 of rounding
        ("small 0.0102, large 3.0", "small 0.0100, large 3.0", False),
        ("1", "1.0", True),
        ("inf", "inf", True),
        ("inf", "1.0", False),
        ("nan", "nan", True),
        ("nan", "0.5", False),
        ("layer2 0.5", "layer3 0.5", False),
        ("1/2", "1/3", False),
        ("bert-base-2.0", "bert-base-2.0", True),
    ],
)
def test_numbers_are_compared_as_numbers(ours, reference, agree):
    assert values_agree(ours, reference) is agree


@pytest.fixture(scope="module")
def tables_of_the_book() -> list[tuple[str, Tolerance, dict]]:
    """The committed tables that are held to the default: where, how, and text and values."""
    found = []
    for chapter in find_book().chapters().values():
        notebook = nbformat.read(chapter.with_suffix(".ipynb"), 4)
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and "regression" not in cell.metadata:
                default = stated_tolerance(cell, notebook)
                for output in cell.outputs:
                    data = {k: v for k, v in output.get("data", {}).items() if k != "text/html"}
                    if TABLE in data:
                        found.append((f"{chapter.stem}, cell {number}", default, data))
    return found


def with_columns(data: dict, change) -> dict:
    """The table with `change(column)` in place of each column's list."""
    columns = {name: change(column) for name, column in data[TABLE]["columns"].items()}
    return data | {TABLE: data[TABLE] | {"columns": columns}}


def shown_unit(data: dict) -> float:
    decimals = re.findall(r"\d\.(\d+)", data["text/plain"])
    return 10.0 ** -max(map(len, decimals), default=0)


def same(ours: dict, reference: dict, tolerance: Tolerance) -> bool:
    ours, reference = ([{"output_type": "display_data", "data": d}] for d in (ours, reference))
    return settle(ours, reference, tolerance) == reference


def test_rounding_of_what_was_added_up_turns_no_table_of_the_book_red(tables_of_the_book):
    assert len(tables_of_the_book) > 50
    generator = np.random.default_rng(0)
    for where, tolerance, data in tables_of_the_book:
        readable = shown_unit(data) / 4  # a table may count to more digits than float32 has

        def rounded(column, share=tolerance.share / 2, readable=readable):
            floats = [abs(x) for x in column if isinstance(x, float)]
            size = min(share * max(floats, default=0.0), readable)
            moves = generator.uniform(-size, size, len(column))
            pairs = zip(column, moves.tolist(), strict=True)
            return [x + move if isinstance(x, float) else x for x, move in pairs]

        assert same(with_columns(data, rounded), data, tolerance), where


def test_one_digit_that_a_reader_sees_turns_every_table_of_the_book_red(tables_of_the_book):
    """Each number of each table, one unit of the last digit shown away."""
    for where, tolerance, data in tables_of_the_book:
        unit, seen = shown_unit(data), last_digit(data["text/plain"])
        for name, column in data[TABLE]["columns"].items():
            for i in (i for i, x in enumerate(column) if isinstance(x, float)):
                moved = [*column[:i], column[i] + unit, *column[i + 1 :]]
                assert not values_agree(moved, column, tolerance, seen), (where, name, column[i])


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


def test_a_chapter_without_a_model_computes_in_double_and_a_wider_tolerance_needs_a_reason():
    def tolerance(parameters: str, **regression) -> Tolerance:
        tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
        cell = new_code_cell("1", metadata={"regression": regression} if regression else {})
        return stated_tolerance(cell, new_notebook(cells=[tagged, cell]))

    assert tolerance("limit = 1") == DOUBLE
    assert not values_agree([1.0, 1 + 1e-8], [1.0, 1.0], DOUBLE)
    assert values_agree([1.0, 1 + 1e-15], [1.0, 1.0], DOUBLE)
    assert tolerance("model = None") == SINGLE
    wide = tolerance("model = None", atol=1e-2, reason="float32 sums")
    assert wide == Tolerance(atol=1e-2, reason="float32 sums")
    assert values_agree("0.001", "0.002", wide)
    assert not values_agree("0.1", "0.2", wide)
    with pytest.raises(ValueError, match="reason"):
        tolerance("model = None", rtol=1e-2)


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


def test_plain_nbval_collects_tests_and_chapters_once(small_book):
    (chapter,) = small_book.chapters().values()
    write_notebook(read_text(chapter), chapter.with_suffix(".ipynb"))
    shutil.copy(find_book().root / "pyproject.toml", small_book.root)
    (small_book.build_folder / "executed").mkdir(parents=True)
    shutil.copy(chapter.with_suffix(".ipynb"), small_book.build_folder / "executed")
    (small_book.root / "tests").mkdir()
    (small_book.root / "tests/test_one.py").write_text("def test_one():\n    pass\n")
    assert "4 tests collected" in nbval(small_book, ".", "--collect-only").stdout


def test_nbval_passes_drift_and_fails_what_is_gone_or_changed(small_book):
    """One run over four copies of a notebook, each with a change of its own."""
    book = small_book
    paths = execute(book, load_parameters(book))
    (twin,) = refresh_twins(book, paths)
    changes = {
        "drift": ("value 1.0 of", "value 1.0000000001 of"),
        "printed": ("value 1.0 of", "value 1.01 of"),
        "answered": ('"0.5"', '"0.501"'),
    }
    text = twin.read_text()
    for name, (was, becomes) in changes.items():
        assert was in text
        (twin.parent / f"{name}.ipynb").write_text(text.replace(was, becomes))
    notebook = nbformat.read(twin, 4)
    notebook.cells[-1].outputs[0].data["image/png"] = "aGk="
    write_notebook(notebook, twin.parent / "gone.ipynb")
    run = nbval(book)
    assert run.returncode == 1, run.stdout
    assert "Missing output fields" in run.stdout
    assert "3 failed" in run.stdout
    for name, red in {"drift": False, "printed": True, "answered": True, "gone": True}.items():
        assert (f"chapters/{name}.ipynb::Cell" in run.stdout) is red, name
