"""Comparing a cell's outputs with the committed ones: text and integers exactly, floats nearly.

Rounding scales with what was added up, not with what is left of it: a small difference of two large
numbers keeps their rounding. A float is therefore matched within a share of the largest magnitude
beside it: in its list (a column of a table that `show` made, at full precision), or in its text.
In such a table it also stays within half a unit of the last digit shown, so that a digit that a
reader sees cannot change. Everything between the numbers, and every integer, has to be the same.

`SINGLE` is for chapters that run a model. `DOUBLE` is for those that have no parameter `model`:
they compute in float64, and only the order of a sum may differ. What a model has touched cannot be
told from what it has not in an output alone, so a chapter has one or the other as a whole.

A cell may widen either in its metadata, with the reason:

    regression: {rtol: 1.0e-3, atol: 1.0e-6, reason: "…"}

As a pytest plugin, which `chapters/conftest.py` loads, it lets nbval compare so. A figure has to be
there wherever the reference has one; its bytes are not compared.
"""

from __future__ import annotations

import copy
import math
import os
import re
from collections import Counter
from typing import Any, NamedTuple
from unittest.mock import patch

from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, IPyNbFile

from lrputils.book.execution import KERNEL_ENVIRONMENT
from lrputils.book.parameters import declared
from lrputils.report.display import ANSWER, TABLE


class Tolerance(NamedTuple):
    """How far two floats a and b may lie apart.

    `rtol` is a share of max(|a|, |b|), `share` one of the largest magnitude beside them; both end
    at half a unit of the last digit shown. `atol` holds whatever is shown. `reason` says why a cell
    is held to other bounds than its chapter.
    """

    rtol: float = 1e-4
    atol: float = 1e-12
    share: float = 1e-5
    reason: str = ""


SINGLE = Tolerance()
DOUBLE = Tolerance(rtol=1e-9, share=1e-9)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")


def values_agree(
    ours: Any,
    reference: Any,
    tolerance: Tolerance = SINGLE,
    unit: float = math.inf,
    largest: float = 0.0,
) -> bool:
    """Compare two JSON-like values: floats within tolerance, all else equal.

    A text is its skeleton and the list of its numbers. The floats of one list are measured by the
    largest of them in the reference; a float alone by itself, or by the `largest` beside it. `unit`
    is that of the last digit shown. NaN agrees with NaN.

    >>> values_agree("r = 0.50000001 of 12", "r = 0.5 of 12")
    True
    >>> values_agree("r = 0.5 of 13", "r = 0.5 of 12")
    False
    """
    if {type(ours), type(reference)} in ({float}, {int, float}):
        same = ours == reference or (math.isnan(ours) and math.isnan(reference))
        bounds = {"rel_tol": tolerance.rtol, "abs_tol": tolerance.share * largest}
        apart = abs(ours - reference)
        near = math.isclose(ours, reference, **bounds) and apart <= unit / 2
        return same or near or apart <= tolerance.atol
    if isinstance(reference, dict) and isinstance(ours, dict):
        same = ours.keys() == reference.keys()
        return same and all(values_agree(ours[k], reference[k], tolerance, unit) for k in reference)
    if isinstance(reference, list) and isinstance(ours, list):
        floats = [abs(x) for x in reference if isinstance(x, float) and math.isfinite(x)]
        bounds = (tolerance, unit, max(floats, default=0.0))
        same = len(ours) == len(reference)
        return same and all(
            values_agree(*pair, *bounds) for pair in zip(ours, reference, strict=False)
        )
    if isinstance(reference, str):
        same = _NUMBER.sub("#", ours) == _NUMBER.sub("#", reference)
        return same and values_agree(_numbers(ours), _numbers(reference), tolerance)
    return type(ours) is type(reference) and ours == reference


def _numbers(text: str) -> list[int | float]:
    found = _NUMBER.findall(text.replace("−", "-"))
    return [int(n) if n.lstrip("-+").isdigit() else float(n) for n in found]


def stated_tolerance(cell: NotebookNode, notebook: NotebookNode) -> Tolerance:
    """Return what a cell is held to: `SINGLE` in a chapter with a parameter `model`, or wider.

    Raises:
        ValueError: it asks for another without a reason.
    """
    default = SINGLE if "model" in declared(notebook) else DOUBLE
    stated = default._replace(**cell.metadata.get("regression", {}))
    if stated != default and not stated.reason.strip():
        raise ValueError("a cell that widens its tolerance must state the reason in its metadata")
    return stated


def settle(
    ours: list[dict[str, Any]], reference: list[dict[str, Any]], tolerance: Tolerance = SINGLE
) -> list[dict[str, Any]]:
    """Return our outputs with each value that agrees replaced by the reference's own.

    What comes back can be compared for equality: it is equal exactly where the two agree. A value
    shown rounded beside its full precision (the `TABLE` type) is compared at full precision.
    """
    settled = copy.deepcopy(ours)
    for mine, theirs in zip(settled, reference, strict=False):
        if ANSWER in mine.get("metadata", {}) and ANSWER in theirs.get("metadata", {}):
            mine |= theirs  # its place; what is written there is compared where it is computed
        got, wanted = mine.get("data", mine), theirs.get("data", theirs)
        for kind in got.keys() & wanted.keys():
            values = got[kind], wanted[kind]
            if kind.startswith("image/"):  # that it is there counts; it shows the numbers above
                agrees = bool(values[0]) == bool(values[1])
            elif kind != TABLE and TABLE in got and TABLE in wanted:
                agrees = _shape(values[0]) == _shape(values[1])
            else:
                unit = _last_digit(wanted.get("text/plain", "")) if kind == TABLE else math.inf
                agrees = values_agree(*values, tolerance, unit)
            if agrees:
                got[kind] = wanted[kind]
    return settled


def _last_digit(shown: str) -> float:
    """Return the unit of a rendering's last decimal place: of the most frequent one."""
    decimals = [n.partition(".")[2] for n in _NUMBER.findall(shown) if "." in n]
    places = Counter(map(len, decimals)).most_common(1)
    return 10.0 ** -places[0][0] if places else math.inf


def _shape(rendering: str) -> str:
    """Return a rendering without its digits and the spaces that align them."""
    return re.sub(r"\s+", " ", _NUMBER.sub("#", rendering))


_equal_outputs, _start_kernel = IPyNbCell.compare_outputs, IPyNbFile.setup


def _compare_outputs(cell: IPyNbCell, ours: Any, reference: Any) -> bool:
    tolerance = stated_tolerance(cell.cell, cell.parent.nb)
    return _equal_outputs(cell, settle(ours, reference, tolerance), reference)


def _start_as_execute_does(notebook: IPyNbFile) -> None:
    compared = ("image/png", "image/jpeg")  # which nbval would leave out
    notebook.skip_compare = tuple(k for k in notebook.skip_compare if k not in compared)
    with patch.dict(os.environ, KERNEL_ENVIRONMENT):
        _start_kernel(notebook)


def pytest_configure(config: Any) -> None:
    """Let every notebook run in this environment and compare numbers as numbers."""
    config.option.nbval_current_env = config.option.nbval_kernel_name is None
    IPyNbCell.compare_outputs = _compare_outputs
    IPyNbFile.setup = _start_as_execute_does
