"""Comparing a cell's outputs with the committed ones: text and integers exactly, floats nearly.

A float in the reference is matched within `STRICT` (its absolute part covers the rounding residue
of double precision around zero); everything between the numbers, and every integer, has to be the
same. A cell may widen either part of the tolerance in its metadata, with the reason:

    regression: {rtol: 1.0e-3, atol: 1.0e-6, reason: "…"}
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from lrputils.report.display import TABLE


class Tolerance(NamedTuple):
    """Two floats agree if |a − b| ≤ max(rtol · max(|a|, |b|), atol)."""

    rtol: float = 1e-4
    atol: float = 1e-12

    def agree(self, ours: float, reference: float) -> bool:
        """Whether two floats agree; NaN agrees with NaN."""
        close = math.isclose(ours, reference, rel_tol=self.rtol, abs_tol=self.atol)
        return close or (math.isnan(ours) and math.isnan(reference))


STRICT = Tolerance()
_NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")


def texts_agree(ours: str, reference: str, tolerance: Tolerance = STRICT) -> bool:
    """Whether two texts have one skeleton, equal integers, and floats within tolerance.

    >>> texts_agree("r = 0.50000001 of 12", "r = 0.5 of 12")
    True
    >>> texts_agree("r = 0.5 of 13", "r = 0.5 of 12")
    False
    """
    if _NUMBER.sub("#", ours) != _NUMBER.sub("#", reference):
        return False
    pairs = zip(_NUMBER.findall(ours), _NUMBER.findall(reference), strict=True)
    return all(_numbers_agree(a, b, tolerance) for a, b in pairs)


def _numbers_agree(ours: str, reference: str, tolerance: Tolerance) -> bool:
    if ours == reference:
        return True
    integers = all(number.lstrip("-+−").isdigit() for number in (ours, reference))
    values = (float(number.replace("−", "-")) for number in (ours, reference))
    return not integers and tolerance.agree(*values)


def values_agree(ours: Any, reference: Any, tolerance: Tolerance = STRICT) -> bool:
    """Compare two JSON-like values: floats within tolerance, texts by `texts_agree`, else equal."""
    if isinstance(reference, float) and isinstance(ours, int | float):
        return tolerance.agree(ours, reference)
    if isinstance(reference, dict) and isinstance(ours, dict):
        same = ours.keys() == reference.keys()
        return same and all(values_agree(ours[k], reference[k], tolerance) for k in reference)
    if isinstance(reference, list) and isinstance(ours, list):
        pairs = zip(ours, reference, strict=False)
        return len(ours) == len(reference) and all(values_agree(*p, tolerance) for p in pairs)
    if isinstance(reference, str) and isinstance(ours, str):
        return texts_agree(ours, reference, tolerance)
    return ours == reference


def stated_tolerance(cell_metadata: dict[str, Any]) -> Tolerance:
    """Return the tolerance that a cell asks for.

    Raises:
        ValueError: it asks for one without a reason.
    """
    asked = cell_metadata.get("regression")
    if asked is None:
        return STRICT
    if not str(asked.get("reason", "")).strip():
        raise ValueError("a cell that widens its tolerance must state the reason in its metadata")
    return Tolerance(float(asked.get("rtol", STRICT.rtol)), float(asked.get("atol", STRICT.atol)))


def _places(outputs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield `(kind, holder, key)` for each comparable value of the outputs."""
    for output in outputs:
        if "data" in output:
            for mime in output["data"]:
                yield mime, output["data"], mime
        elif "text" in output:
            yield str(output.get("name")), output, "text"


def settle(
    ours: list[dict[str, Any]], reference: list[dict[str, Any]], tolerance: Tolerance = STRICT
) -> list[dict[str, Any]]:
    """Return our outputs with each value that agrees replaced by the reference's own.

    What comes back can be compared for equality: it is equal exactly where the two agree. A value
    shown rounded beside its full precision (the `TABLE` type) is compared at full precision.
    """
    settled = copy.deepcopy(ours)
    mine = defaultdict(list)
    for kind, holder, _ in _places(settled):
        mine[kind].append(holder)
    for kind, theirs, key in _places(reference):
        if not mine[kind]:
            continue
        holder = mine[kind].pop(0)
        values = _joined(holder[key]), _joined(theirs[key])
        if kind.startswith("image/"):  # that there is one counts; what it shows is numbers, above
            agrees = bool(values[0]) == bool(values[1])
        elif key != TABLE and TABLE in theirs and TABLE in holder:
            agrees = _shape(values[0]) == _shape(values[1])
        else:
            agrees = values_agree(*values, tolerance)
        if agrees:
            holder[key] = theirs[key]
    return settled


def _shape(value: Any) -> Any:
    """Return a rendering without its digits and the spaces that align them."""
    return re.sub(r"\s+", " ", _NUMBER.sub("#", value)) if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    """Undo the notebook format's splitting of texts into lists of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    if isinstance(value, str) and value[:1] in "{[":
        with suppress(ValueError):
            return json.loads(value)
    return value
