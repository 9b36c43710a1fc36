"""The book's common table: paper | recorded run | this run, and what follows from the two.

It compares given numbers and intervals; `lrputils.report.display.show` formats them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import READOUTS
from lrputils.study.by_text import Run
from lrputils.study.evaluation import Evaluation

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


def compare_runs(
    this_run: Run,
    recorded: Run,
    published: pd.Series,
    column: str,
    methods: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return `compare` of the means of one column in two runs, for `methods` or all of this run.

    `published` are the paper's means by method; those of other methods are left out.
    """
    ours = this_run.summary(column, methods)
    printed = published[published.index.isin(ours.index)]
    return compare(ours, printed, recorded.summary(column, list(ours.index)))


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


def conventions(evaluation: Run, methods: Sequence[str] | None = None) -> pd.DataFrame:
    """Return each method's mean r with LOO under each of `CORRELATIONS`, `side_by_side`.

    And `flipped`, the share of maps whose own sum is negative.
    """
    parts = {name: evaluation.summary(column, methods) for column, name in CORRELATIONS.items()}
    frame = side_by_side(parts).drop(index="loo", errors="ignore")
    return frame.assign(flipped=evaluation.per_text("flipped", methods).mean())


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


def gaps(runs: Mapping[str, Run], first: str, second: str) -> pd.DataFrame:
    """Return `first − second` at each read-out, a row a run and convention, `side_by_side`."""
    parts = {
        (run, name): readouts(evaluation, first, second, column)[
            ["difference", "difference low", "difference high"]
        ].set_axis(["value", "low", "high"], axis=1)
        for run, evaluation in runs.items()
        for column, name in CORRELATIONS.items()
    }
    table = pd.concat(parts, names=["model", "convention", "readout"])
    places = [place for place in READOUTS if place in table.index.unique("readout")]
    return side_by_side({place: table.xs(place, level="readout") for place in places})


def leaders(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Say which method leads by each column of a run, and whether the columns order them alike.

    A row a run: `maps`, how many methods (LOO apart); `best_COLUMN`, the leader's label; `alike`,
    whether all columns give one order of the means; `ranks`, the rank correlation of the first and
    the last one's order. Means that only rounding tells apart are equal: of two that lead, the
    first method of the run is named.
    """
    rows = {}
    for name, run in runs.items():
        means = pd.DataFrame({column: run.summary(column).value for column in ("r", "delta")})
        means = means[means.index.isin(METHODS)].drop(index="loo").dropna().round(9)
        ranks = means.rank()
        rows[name] = {
            "maps": len(means),
            **{f"best_{c}": METHODS[best].label for c, best in means.idxmax().items()},
            "alike": bool(ranks.eq(ranks.iloc[:, 0], axis=0).all(axis=None)),
            "ranks": float(ranks.corr().iloc[0, -1]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def above(low: float, high: float, bound: float) -> str:
    """Whether an interval lies above a bound: "yes", "no" (it lies below) or "cannot tell"."""
    return "yes" if low > bound else "no" if high < bound else CANNOT_TELL


def first_chunk(
    scores: Sequence[np.ndarray],
    content: Sequence[np.ndarray],
    morf: Sequence[Sequence[float]],
    chunk: int,
) -> pd.DataFrame:
    """What LOO promises for the first chunk that goes, and what its going costs.

    From LOO's maps, (tokens,) a text, `content` (false at special tokens), and the logits along
    them, the most relevant chunk first. Estimates over texts, in logits, a row each: `promised`,
    the largest sum of LOO over a chunk; `lost`, what the logit falls by when that chunk goes; and
    `lost − promised`.
    """
    promised = np.array(
        [
            np.add.reduceat(each[mask], np.arange(0, mask.sum(), chunk)).max()
            for each, mask in zip(scores, content, strict=True)
        ]
    )
    lost = np.array([curve[0] - curve[1] for curve in morf])
    found = {name: stats.estimate(v) for name, v in {"promised": promised, "lost": lost}.items()}
    return stats.table({**found, "lost − promised": stats.paired_difference(lost, promised)})


def run_card(classifier: Classifier, texts: Texts, evaluation: Evaluation) -> pd.DataFrame:
    """Return what a run measured: model, texts, lengths and accuracy, a row each."""
    accuracy = evaluation.accuracy()
    lengths = [len(row) for row in evaluation.tokens]
    kind, layers = type(classifier.model).__name__, classifier.architecture.layers
    facts = {
        "model": classifier.name,
        "architecture": f"{kind}, {layers} layers",
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
