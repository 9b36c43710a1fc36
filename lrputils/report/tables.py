"""The book's common table: paper | recorded run | this run, and what follows from the two.

It compares given numbers and intervals; `lrputils.report.display.show` formats them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from lrputils import stats
from lrputils.model.readout import READOUTS
from lrputils.study.by_text import Run

AGREES, DISAGREES, CANNOT_TELL = "agrees", "disagrees", "cannot tell"
MARGIN = 0.05  # a difference of r up to this is called agreement
# Which columns are the ends of which value's interval.
INTERVALS = {"this run": ("low", "high"), "difference": ("difference low", "difference high")}
_RECORDED = {"recorded": ("recorded low", "recorded high")}

Measured = float | Sequence[float]


def compare(
    this_run: Mapping[str, Measured] | pd.DataFrame,
    paper: Mapping[str, float] | pd.Series,
    recorded: Mapping[str, Measured] | pd.DataFrame | None = None,
    *,
    margin: float = MARGIN,
) -> pd.DataFrame:
    """Return the table paper | recorded run | this run, with the difference and a verdict.

    Args:
        this_run: a table with columns `value`, `low` and `high`, as `lrputils.stats.estimates`; or
            for each row an `Estimate`, any `(value, low, high)` (ends may be NaN), or a single
            number where there is no interval. It decides which rows there are.
        paper: published means, printed without an interval; a row may be absent.
        recorded: the same of a recorded run, if there is one; a row may be absent.
        margin: a difference up to this is called agreement. The published value's own uncertainty
            is not printed anywhere, so no verdict takes it into account.

    Returns:
        Columns `paper`, `this run`, `low`, `high`, `difference` (this run − paper), `difference
        low`, `difference high`, `verdict`; with a recorded run also `recorded`, its ends and
        `recorded verdict`, on recorded − paper. NaN (and an empty verdict) where there is nothing
        to compare.

    Raises:
        ValueError: `paper` or `recorded` has a row that `this_run` lacks, or an interval is not
            one.
    """
    ours, printed = _as_table(this_run), pd.Series(paper, dtype=float)
    kept = _as_table({} if recorded is None else recorded)
    for name, rows in {"paper": printed.index, "recorded": kept.index}.items():
        if stray := [row for row in rows if row not in ours.index]:
            raise ValueError(f"`{name}` has row(s) {stray}; this run has {list(ours.index)}")
    printed = printed.reindex(ours.index)
    frame = printed.to_frame("paper")
    if recorded is not None:
        kept = kept.reindex(ours.index).replace([-math.inf, math.inf], math.nan)
        frame[["recorded", *_RECORDED["recorded"]]] = kept
        frame["recorded verdict"] = _verdicts(kept.sub(printed, axis=0), margin)
    difference = ours.sub(printed, axis=0)
    frame[["this run", *INTERVALS["this run"]]] = ours
    frame[["difference", *INTERVALS["difference"]]] = difference
    frame["verdict"] = _verdicts(difference, margin)
    frame.attrs["intervals"] = INTERVALS if recorded is None else {**INTERVALS, **_RECORDED}
    return frame


def _as_table(measured: Mapping[str, Measured] | pd.DataFrame) -> pd.DataFrame:
    """Return `value`, `low` and `high` by row; without an interval the ends are infinitely far."""
    if isinstance(measured, pd.DataFrame):
        table = measured[["value", "low", "high"]].astype(float)
    else:
        rows = [
            tuple(value[:3]) if isinstance(value, Sequence) else (value, -math.inf, math.inf)
            for value in measured.values()
        ]
        table = pd.DataFrame(rows, columns=["value", "low", "high"], dtype=float)
        table.index = pd.Index(list(measured))
    for name, value, low, high in table.dropna().itertuples(name=None):
        if not low <= value <= high:
            raise ValueError(f"Row {name!r}: {value} is not within its interval [{low}, {high}]")
    return table


def _verdicts(difference: pd.DataFrame, margin: float) -> list[str]:
    return [verdict(*ends, margin) for ends in difference[["low", "high"]].to_numpy()]


def verdict(low: float, high: float, margin: float = MARGIN) -> str:
    """Judge a difference by its interval.

    "agrees" if the whole interval lies within ± `margin`, "disagrees" if all of it lies outside,
    "cannot tell" if it reaches across (or there is no interval); "" if it is NaN because nothing
    was published.
    """
    if not margin > 0:
        raise ValueError(f"margin={margin} is not a positive number")
    if math.isnan(low) or math.isnan(high):
        return ""
    if -margin <= low and high <= margin:
        return AGREES
    if low > margin or high < -margin:
        return DISAGREES
    return CANNOT_TELL


CORRELATIONS = {"r": "raw", "r_content": "without special tokens", "r_normalised": "sum to one"}


def side_by_side(parts: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put tables of `value`, `low` and `high` into one: columns NAME, `NAME low` and `NAME high`.

    `lrputils.report.display.show` knows which are intervals.
    """
    intervals = {name: (f"{name} low", f"{name} high") for name in parts}
    frame = pd.concat([part[["value", "low", "high"]] for part in parts.values()], axis=1)
    frame.columns = [column for name, ends in intervals.items() for column in (name, *ends)]
    frame.attrs["intervals"] = intervals
    return frame


def readouts(evaluation: Run, first: str, second: str, column: str = "r") -> pd.DataFrame:
    """Return the mean r of two methods at each read-out, and their paired difference.

    Of `at_every_readout(first, second)`, or a recorded run; `column` says which correlation. A row
    a read-out; columns `first`, `second` and `difference` (first − second), `side_by_side`.
    """
    plain = evaluation.rows[evaluation.rows.family == ""]
    known = plain[plain.method.isin([first, second])].groupby("readout").method.nunique()
    found: dict[str, dict[str, stats.Estimate]] = {first: {}, second: {}, "difference": {}}
    for place in (place for place in READOUTS if known.get(place) == 2):
        wide = evaluation.per_text(column, [first, second], place)
        for method in (first, second):
            found[method][place] = stats.estimate(wide[method])
        found["difference"][place] = stats.paired_difference(wide[first], wide[second])
    return side_by_side({name: stats.table(estimates) for name, estimates in found.items()})


def above(low: float, high: float, bound: float) -> str:
    """Whether an interval lies above a bound: "yes", "no" (it lies below) or "cannot tell"."""
    return "yes" if low > bound else "no" if high < bound else CANNOT_TELL
