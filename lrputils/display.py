"""Tables rounded for the reader, with their full values for the regression test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

# The values in full precision travel beside the rounded HTML under this MIME type, so that the
# comparison of a chapter's outputs does not depend on how a last digit was rounded.
TABLE = "application/vnd.lrputils.table+json"


class ShownTable:
    """A data frame that a notebook shows rounded; `frame` holds the values."""

    def __init__(self, frame: pd.DataFrame, digits: int, intervals: Mapping[str, tuple[str, str]]):
        missing = [c for k, pair in intervals.items() for c in (k, *pair) if c not in frame]
        if missing:
            raise ValueError(f"no column(s) {missing} in the table; it has {list(frame.columns)}")
        self.frame = frame
        self._digits = digits
        self._intervals = intervals

    def rounded(self) -> pd.DataFrame:
        """Return the table as texts, an interval written behind its value."""
        shown = self.frame.copy().astype(object)
        for column in self.frame:
            shown[column] = [self._text(value) for value in self.frame[column]]
        for column, (low, high) in self._intervals.items():
            between = [
                f"[{a}, {b}]" if a else "" for a, b in zip(shown[low], shown[high], strict=True)
            ]
            shown[column] = [
                f"{v} {i}".strip() for v, i in zip(shown[column], between, strict=True)
            ]
            shown = shown.drop(columns=[low, high])
        return shown

    def _text(self, value: Any) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        return f"{value:.{self._digits}f}" if isinstance(value, float) else str(value)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        shown = self.rounded()
        return {
            "text/html": shown.to_html(border=0, classes="lrp-table"),
            "text/plain": shown.to_string(),
            TABLE: {
                "index": [str(label) for label in self.frame.index],
                "columns": {str(name): _plain(self.frame[name]) for name in self.frame},
            },
        }


def _plain(column: pd.Series) -> list[Any]:
    values = [value.item() if hasattr(value, "item") else value for value in column]
    bad = [isinstance(value, float) and not math.isfinite(value) for value in values]
    return [str(v) if b else v for v, b in zip(values, bad, strict=True)]


def show(
    table: pd.DataFrame,
    *,
    digits: int = 3,
    intervals: Mapping[str, tuple[str, str]] | None = None,
) -> ShownTable:
    """Return `table` as a chapter's cell shows it.

    Args:
        table: the values; NaN and None are shown as nothing.
        digits: decimals of the floats.
        intervals: `{column: (low, high)}`: shown as `value [low, high]` in one column. Added to
            those that the table itself names, in `table.attrs["intervals"]`, as far as its columns
            are still there.

    Raises:
        ValueError: `intervals` names a column that the table does not have.
    """
    known = {k: v for k, v in table.attrs.get("intervals", {}).items() if {k, *v} <= {*table}}
    return ShownTable(table, digits, {**known, **(intervals or {})})
