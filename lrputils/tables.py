"""The book's common table: paper | recorded run | this run, and what follows from the two.

It compares given numbers and intervals; `lrputils.display.show` formats them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.evaluation import Evaluation
from lrputils.models import Classifier
from lrputils.readout import READOUTS
from lrputils.results import Recording

AGREES, DISAGREES, CANNOT_TELL = "agrees", "disagrees", "cannot tell"
# Which columns are the ends of which value's interval.
INTERVALS = {"this run": ("low", "high"), "difference": ("difference low", "difference high")}
_RECORDED = {"recorded": ("recorded low", "recorded high")}

Measured = float | Sequence[float]


def compare(
    this_run: Mapping[str, Measured],
    paper: Mapping[str, float] | pd.Series,
    recorded: Mapping[str, Measured] | pd.Series | None = None,
    *,
    margin: float = 0.05,
) -> pd.DataFrame:
    """Return the table paper | recorded run | this run, with the difference and a verdict.

    Args:
        this_run: for each row, `(value, low, high)` (an `Estimate` of `lrputils.stats` is one; ends
            may be NaN), or a single number where there is no interval. It decides which rows there
            are.
        paper: published means, printed without an interval; a row may be absent.
        recorded: the same of a recorded run, if there is one; a row may be absent.
        margin: a difference up to this is called agreement. The published value's own uncertainty
            is not printed anywhere, so no verdict takes it into account.

    Returns:
        A data frame with columns `paper`, `this run`, `low`, `high`, `difference` (this run −
        paper), `difference low`, `difference high`, `verdict`; NaN (and an empty verdict) where
        there is nothing to compare. See `verdict`. With a recorded run also `recorded`, `recorded
        low`, `recorded high` and `recorded verdict`, on the difference recorded − paper.
        `lrputils.display.show` knows which columns are intervals.

    Raises:
        ValueError: `paper` or `recorded` has a row that `this_run` lacks, or an interval is not
            one.
    """
    published = dict(paper)
    kept = {} if recorded is None else dict(recorded)
    known = {"paper": published, "recorded": kept}
    for name, values in known.items():
        stray = [row for row in values if row not in this_run]
        if stray:
            raise ValueError(f"`{name}` has row(s) {stray}; this run has {list(this_run)}")
    rows = {}
    for name, measured in this_run.items():
        value, low, high = _with_interval(name, measured)
        reference = float(published.get(name, math.nan))
        rows[name] = {
            "paper": reference,
            **({} if recorded is None else _recorded(name, kept, reference, margin)),
            "this run": value,
            "low": low,
            "high": high,
            "difference": value - reference,
            "difference low": low - reference,
            "difference high": high - reference,
            "verdict": verdict(low - reference, high - reference, margin),
        }
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.attrs["intervals"] = INTERVALS if recorded is None else {**INTERVALS, **_RECORDED}
    return frame


def _recorded(
    name: str, recorded: Mapping[str, Measured], reference: float, margin: float
) -> dict[str, float | str]:
    measured = recorded.get(name, math.nan)
    value, low, high = _with_interval(name, measured)
    known = math.isfinite(low) and math.isfinite(high)
    return {
        "recorded": value,
        "recorded low": low if known else math.nan,
        "recorded high": high if known else math.nan,
        "recorded verdict": verdict(low - reference, high - reference, margin) if known else "",
    }


def verdict(low: float, high: float, margin: float = 0.05) -> str:
    """Judge a difference by its interval.

    "agrees" if the whole interval lies within ± `margin`, "disagrees" if all of it lies outside,
    "cannot tell" if it reaches across (or there is no interval); "" if the difference is NaN
    because nothing was published.
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


def _with_interval(name: str, measured: Measured) -> tuple[float, float, float]:
    """Return (value, low, high); without an interval the ends are infinitely far."""
    if isinstance(measured, Sequence):
        value, low, high = map(float, measured[:3])
    else:
        value, low, high = float(measured), -math.inf, math.inf
    unknown = math.isnan(value) or math.isnan(low) or math.isnan(high)
    if not unknown and not low <= value <= high:
        raise ValueError(f"Row {name!r}: {value} is not within its interval [{low}, {high}]")
    return value, low, high


CONVENTIONS = {"r": "raw", "r_content": "without special tokens", "r_normalised": "sum to one"}
CONVENTION_INTERVALS = {name: (f"{name} low", f"{name} high") for name in CONVENTIONS.values()}


def conventions(
    evaluation: Evaluation | Recording, methods: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return each method's mean r with LOO under each convention, with intervals.

    Rows are `methods`, or all; columns the conventions of `CONVENTIONS`, their intervals (see
    `CONVENTION_INTERVALS`) and `flipped`, the share of maps whose own sum is negative.
    """
    parts = {}
    for column, name in CONVENTIONS.items():
        summary = evaluation.summary(column, methods)
        parts |= {name: summary["mean"], f"{name} low": summary.low, f"{name} high": summary.high}
    frame = pd.DataFrame(parts).drop(index="loo", errors="ignore")
    return frame.assign(flipped=evaluation.per_text("flipped", methods).mean())


def readouts(
    evaluation: Evaluation | Recording, first: str, second: str, column: str = "r"
) -> pd.DataFrame:
    """Return the mean r of two methods at each read-out, and their paired difference.

    Args:
        evaluation: of `lrputils.variants.at_every_readout(first, second)`, or a recorded run, where
            the read-out "word" is each method itself.
        first: a method's name; gives the columns `first`, `first low`, `first high`.
        second: another one's.
        column: which correlation, as in the rows: "r", "r_content", "r_normalised".

    Returns:
        A row a read-out; the columns of both methods, `difference` (first − second) and its ends.
    """
    wide, rows = evaluation.per_text(column), {}
    for place in READOUTS:
        names = [f"{method} @ {place}" for method in (first, second)]
        names = names if names[0] in wide or place != "word" else [first, second]
        if not set(names) <= set(wide):
            continue
        one, two = (wide[name] for name in names)
        estimates = {
            first: stats.estimate(one),
            second: stats.estimate(two),
            "difference": stats.paired_difference(one, two),
        }
        rows[place] = {
            f"{name}{end}": value
            for name, estimate in estimates.items()
            for end, value in zip(("", " low", " high"), estimate[:3], strict=True)
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def run_card(classifier: Classifier, texts: Texts, evaluation: Evaluation) -> pd.DataFrame:
    """Return what a run measured: model, texts, lengths and accuracy, a row each."""
    accuracy = evaluation.accuracy()
    lengths = [len(row) for row in evaluation.tokens]
    facts = {
        "model": classifier.name,
        "architecture": f"{type(classifier.model).__name__}, "
        f"{classifier.architecture.layers} layers",
        "weights": _short(classifier.identity),
        "texts": f"{len(texts)} of {texts.name}",
        "their identity": _short(texts.identity),
        "tokens a text": f"{min(lengths)} to {max(lengths)}",
        "accuracy": "no labels of its classes" if accuracy is None else f"{accuracy:.1%}",
    }
    return pd.DataFrame({"this run": facts})


def _short(identity: str) -> str:
    kind, _, digits = identity.partition(" ")
    return f"{kind} {digits[:12]}"
