import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from lrputils.book.execution import execute, refresh_twins
from lrputils.book.notebooks import METADATA, write_notebook
from lrputils.book.parameters import load_parameters
from lrputils.book.regression import (
    DOUBLE,
    SINGLE,
    Tolerance,
    settle,
    stated_tolerance,
    values_agree,
)
from lrputils.report.display import ANSWER, TABLE


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


def shown(**data) -> list[dict]:
    return [{"output_type": "display_data", "data": {"text/plain": "p", **data}}]


def table(value: float, text: str) -> list[dict]:
    return shown(**{"text/plain": text, TABLE: {"index": ["a"], "columns": {"r": [value]}}})


def answer(text: str, facts: dict[str, str]) -> list[dict]:
    return [{**shown(**{"text/markdown": text})[0], "metadata": {ANSWER: facts}}]


def written(r: float) -> list[dict]:
    return shown(**{ANSWER: {"text": f"It is {r:.2f}.", "facts": {"r": r}}})


@pytest.mark.parametrize(
    ("ours", "reference", "same"),
    [
        # Where an answer stands, an earlier cell's run does not know it yet.
        (answer("The last cells compute it.", {}), answer("It is 0.50.", {"own": ""}), True),
        (shown(**{"text/markdown": "x"}), answer("It is 0.50.", {"own": ""}), False),
        (written(0.5000001), written(0.5), True),
        (written(0.51), written(0.5), False),
        (table(0.7424999, "a  0.742"), table(0.7425001, "a  0.743"), True),  # at full precision
        (table(0.75, "a  0.743"), table(0.7425001, "a  0.743"), False),
        (table(0.7425001, "b  0.743"), table(0.7425001, "a  0.743"), False),
        (shown(**{"image/svg+xml": "<svg>2</svg>"}), shown(**{"image/svg+xml": "<svg/>"}), True),
        (shown(**{"image/svg+xml": ""}), shown(**{"image/svg+xml": "<svg/>"}), False),
        (shown(), shown(**{"image/svg+xml": "<svg/>"}), False),
    ],
)
def test_outputs_settle_where_they_agree(ours, reference, same):
    assert (settle(ours, reference) == reference) is same


def test_a_chapter_without_a_model_computes_in_double_and_a_wider_tolerance_needs_a_reason():
    def tolerance(parameters: str, **regression) -> Tolerance:
        tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
        cell = new_code_cell("1", metadata={"regression": regression} if regression else {})
        return stated_tolerance(cell, new_notebook(cells=[tagged, cell], metadata=METADATA))

    assert tolerance("limit = 1") == DOUBLE
    assert not values_agree([1.0, 1 + 1e-8], [1.0, 1.0], DOUBLE)
    assert values_agree([1.0, 1 + 1e-15], [1.0, 1.0], DOUBLE)
    assert tolerance("model = None") == SINGLE
    wide = tolerance("model = None", atol=1e-2, reason="float32 sums")
    assert values_agree("0.001", "0.002", wide)
    assert not values_agree("0.1", "0.2", wide)
    with pytest.raises(ValueError, match="reason"):
        tolerance("model = None", rtol=1e-2)


def test_nbval_passes_drift_and_fails_what_is_gone_or_changed(small_book, monkeypatch):
    """One run over four copies of a notebook, each with a change of its own."""
    (twin,) = refresh_twins(small_book, execute(small_book, load_parameters(small_book)))
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
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # of whoever runs this test
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=small_book.root, check=False)
    assert run.returncode == 1, run.stdout
    assert "Missing output fields" in run.stdout
    assert "3 failed" in run.stdout
    for name, red in {"drift": False, "printed": True, "answered": True, "gone": True}.items():
        assert (f"chapters/{name}.ipynb::Cell" in run.stdout) is red, name
