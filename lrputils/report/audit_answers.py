"""What the rows of an audit answer: does LRP track leave-one-out, and which method at which cost?

Every table is made from the rows alone. A comparison is of texts with themselves, with a bootstrap
interval over texts; where it cannot be decided, the number of texts that would decide it is
computed from the spread of the differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from lrputils import stats
from lrputils.report import tables
from lrputils.report.audit import COMPARED, LRP, OTHER, REMOVED, Audited, cost, label
from lrputils.report.tables import CANNOT_TELL, side_by_side
from lrputils.study import specifications
from lrputils.study.evaluation import REFERENCE
from lrputils.study.softmax_errors import single_layer_gains
from lrputils.study.specifications import DEFAULT, EVERY, NO_CLS, RAW, SUM_TO_ONE, WORDS

# A map tracks LOO if it explains half of LOO's variance over a text's tokens: r² = 1/2.
TRACKS = math.sqrt(0.5)
# Two methods are alike if their mean r differ by no more; fewer texts than this decide nothing.
MARGIN, FEWEST = 0.02, 10
CLEAR, ALIKE = "clear", "alike"
MASK = "attention-mask"
# Special tokens are no words of the text: they count in `sensitivity` alone.
R = "r_content"


def named(run: Audited, column: str = R) -> pd.DataFrame:
    """Return r with LOO of every method and read-out, (texts, names), in `audit.label`'s words."""
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin([*LRP, *COMPARED])]
    names = [label(*pair) for pair in zip(rows.method, rows.readout, strict=True)]
    rows = rows.assign(name=names)
    found = rows.pivot(index="position", columns="name", values=column).astype(float)
    return found[rows.name.unique()].rename_axis(columns=None)


def mean_costs(run: Audited) -> pd.Series:
    """Return the forward passes a text, by the names of `named` and "LOO", least first."""
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin([*LRP, *COMPARED, REFERENCE])]
    names = [label(*pair) for pair in zip(rows.method, rows.readout, strict=True)]
    taken = [cost(*pair) for pair in zip(rows.method, rows.tokens, strict=True)]
    return pd.Series(taken, names, float).groupby(level=0, sort=False).mean().sort_values()


def needed(
    differences: pd.Series, margin: float, *, confidence: float = 0.95, power: float = 0.8
) -> float:
    """Return how many texts decide a paired comparison, if these differences are typical.

    Decided is what the interval, mean ± z·s/√n, leaves on one side of 0, or within ± `margin`; the
    number is the smaller of those that do so with this probability. Infinite if nothing varies and
    nothing differs, NaN below two texts.
    """
    values = differences.dropna()
    if len(values) < 2:
        return math.nan
    mean, spread = abs(values.mean()), values.std()
    ends = norm.ppf(0.5 + confidence / 2)
    apart = ((ends + norm.ppf(power)) * spread / mean) ** 2 if mean else math.inf
    room = margin - mean
    within = ((ends + norm.ppf(0.5 + power / 2)) * spread / room) ** 2 if room > 0 else math.inf
    return max(FEWEST, math.ceil(min(apart, within))) if min(apart, within) < math.inf else math.inf


class Lead(NamedTuple):
    """The method of the highest mean r among several, and whether it leads.

    Attributes:
        best: its name.
        r: its mean r with interval.
        outcome: `CLEAR`, it is ahead of every other one; `ALIKE`, those that it is not ahead of are
            within `MARGIN` of it; or "cannot tell".
        rival: the one that is hardest to tell from it; "" if there is no other.
        difference: best − rival, its interval widened for the number of rivals.
        texts: how many would decide.
    """

    best: str
    r: stats.Estimate
    outcome: str
    rival: str
    difference: stats.Estimate
    texts: float


def lead(found: pd.DataFrame, **options: Any) -> Lead:
    """Compare the best of several methods with each other one, text by text.

    The best is chosen on the same texts: so that it is wrongly called best of k with a probability
    of at most 5%, each of the k − 1 intervals has a confidence of 1 − 5% / (k − 1).

    Args:
        found: (texts, methods), r; a text that lacks one is left out.
        options: `resamples` and `seed` of `lrputils.stats.estimate`.

    Raises:
        ValueError: no text has an r.
    """
    found = found.dropna(axis=1, how="all").dropna()
    if found.empty:
        raise ValueError("no text has a correlation: each map, or LOO, is constant on every text")
    best = found.mean().idxmax()
    level = {"confidence": 1 - 0.05 / max(found.shape[1] - 1, 1)}
    gaps = found.drop(columns=best).rsub(found[best], axis=0)
    ends = {name: stats.estimate(gap, **level, **options) for name, gap in gaps.items()}
    texts = {name: needed(gap, MARGIN, **level) for name, gap in gaps.items()}
    few = len(found) < FEWEST
    beaten = {name: gap.low > 0 and not few for name, gap in ends.items()}
    close = {name: gap.low >= -MARGIN and gap.high <= MARGIN for name, gap in ends.items()}
    open_ = [name for name in ends if few or not (beaten[name] or close[name])]
    rival = max(open_ or ends, key=lambda name: (texts[name], -ends[name].value), default="")
    outcome = CANNOT_TELL if open_ else CLEAR if all(beaten.values()) else ALIKE
    nothing = stats.estimate([np.nan])
    own = stats.estimate(found[best], **options)
    return Lead(best, own, outcome, rival, ends.get(rival, nothing), texts.get(rival, math.nan))


def tracks(found: pd.Series) -> tuple[str, float]:
    """Say whether mean r is above `TRACKS`: "yes", "no" or "cannot tell", and the texts needed."""
    own = stats.estimate(found)
    told = tables.above(own.low, own.high, TRACKS) if own.used >= FEWEST else CANNOT_TELL
    return told, needed(found - TRACKS, 0.0)


class Verdict(NamedTuple):
    """Does LRP track LOO on this model and these texts?

    Attributes:
        answer: "yes", "no" or "cannot tell", of the best of the LRP maps.
        best: that map.
        readout: where it is read.
        r: its mean r with interval.
        texts: how many texts would decide where the answer is "cannot tell".
        below: the share of texts on which r is below `TRACKS`.
        table: AttnLRP, CP-LRP and their paired difference at each read-out.
    """

    answer: str
    best: str
    readout: str
    r: stats.Estimate
    texts: float
    below: float
    table: pd.DataFrame


def verdict(run: Audited, column: str = R) -> Verdict:
    """Judge AttnLRP and CP-LRP at every read-out."""
    table = tables.readouts(run, *LRP, column)
    maps = {label(m, place): (m, place) for m in LRP for place in table.index}
    found = named(run, column)[[*maps]]
    best = found.mean().idxmax()
    answer, texts = tracks(found[best])
    below = float((found[best].dropna() < TRACKS).mean())
    parts = {label(m): table[[m, f"{m} low", f"{m} high"]] for m in LRP}
    parts["difference"] = table[["difference", "difference low", "difference high"]]
    ends = ["value", "low", "high"]
    table = side_by_side({name: part.set_axis(ends, axis=1) for name, part in parts.items()})
    r = stats.estimate(found[best])
    return Verdict(answer, best, maps[best][1], r, texts, below, table)


def by_method(run: Audited, seconds: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return r and cost of every method, LOO last: `passes`, `r` with interval, `seconds`."""
    costs, found = mean_costs(run), named(run)
    rows = {name: stats.estimate(found[name])[:3] for name in costs.index if name in found}
    rows[label(REFERENCE)] = (1.0, math.nan, math.nan)
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["r", "low", "high"])
    table.insert(0, "passes", costs[table.index])
    table.insert(1, "share of LOO", table.passes / costs[label(REFERENCE)])
    if seconds is not None:
        names = {label(name): name for name in (*LRP, *COMPARED, REFERENCE)}
        plain = [row if row in names else row.rsplit(", ", 1)[0] for row in table.index]
        table["seconds"] = [seconds.get(names[row], math.nan) for row in plain]
    table.attrs["intervals"] = {"r": ("low", "high")}
    return table


def at_budgets(run: Audited) -> dict[float, Lead]:
    """Return `lead` among the methods that cost at most so many passes, for each cost below LOO's.

    A budget at which the answer is that of the one below is left out.
    """
    costs, found = mean_costs(run), named(run)
    costs = costs[costs < costs[label(REFERENCE)]].drop(label(REFERENCE), errors="ignore")
    answers: dict[float, Lead] = {}
    for budget in sorted({round(passes, 1) for passes in costs}):
        answer = lead(found[costs.index[costs <= budget + 0.05]])
        if not answers or answer[::2] != [*answers.values()][-1][::2]:
            answers[budget] = answer
    return answers


def worst(run: Audited, method: str, readout: str, count: int = 3) -> pd.Series:
    """Return the lowest r with LOO of a map, by the texts' positions."""
    return run.per_text(R, [method], readout)[method].nsmallest(count)


def layers(run: Audited) -> dict[str, pd.DataFrame]:
    """Return what CP-LRP's rule in one layer alone adds to AttnLRP's r: read-out → by layer."""
    places = run.rows[run.rows.family == "single"].readout.unique()
    return {
        place: stats.estimates(single_layer_gains(run, R, place), resamples=2000)
        for place in places
    }


def _grid(run: Audited) -> pd.DataFrame:
    """Return `specifications.agreement` of AttnLRP and CP-LRP for both targets, side by side."""
    rows = run.rows[run.rows.family == ""].assign(id=run.rows.position, rules="")
    parts = {}
    for target, end in (("predicted", ""), ("runner-up", OTHER)):
        names = {f"{name}{end}": name for name in (REFERENCE, *LRP)}
        part = rows[rows.method.isin(names) | ((rows.method == REMOVED) & (end == ""))]
        if part.empty:
            continue
        removals = {REFERENCE + end: MASK, REMOVED: "other"}
        removal = part.method.map(removals).fillna("")
        method = part.method.map({**names, REMOVED: REFERENCE})
        readout = part.readout.where(method != REFERENCE, "")
        part = part.assign(method=method, removal=removal, readout=readout)
        parts[target] = specifications.agreement(part)
    return pd.concat(parts, axis=1, names=["target"])


_USUAL = {
    "target": "predicted",
    "rules": DEFAULT,
    "read-out": "word",
    "tokens": WORDS,
    "normalisation": RAW,
    "removal": MASK,
    "coefficient": "Pearson",
}
# What is chosen otherwise, one choice at a time, and what the choice is called.
_CHANGED = {
    "as above": {},
    "read-out: sum": {"read-out": "sum"},
    "read-out: post-norm": {"read-out": "post-norm"},
    "special tokens count": {"tokens": EVERY},
    "special tokens but the first count": {"tokens": NO_CLS},
    "maps sum to one": {"normalisation": SUM_TO_ONE},
    "Spearman": {"coefficient": "Spearman"},
    "Kendall": {"coefficient": "Kendall"},
    "another removal": {"removal": "other"},
    "the runner-up's class": {"target": "runner-up"},
}


class Sensitivity(NamedTuple):
    """How AttnLRP − CP-LRP depends on conventions.

    Attributes:
        one: a row a choice changed alone; AttnLRP, CP-LRP, and the difference.
        count: specifications in all.
        outcome: the share of them with the difference above zero, below, or undecided.
        reversals: by choice, how often it alone reverses the answer.
    """

    one: pd.DataFrame
    count: int
    outcome: pd.Series
    reversals: pd.Series


def sensitivity(run: Audited) -> Sensitivity:
    """Compare the two methods under every convention that the rows hold."""
    found = _grid(run)
    methods = {name: found.xs(name, axis=1, level="method") for name in LRP}
    gap = methods[LRP[0]] - methods[LRP[1]]
    parts: dict[str, dict[str, stats.Estimate]] = {
        label(LRP[0]): {},
        label(LRP[1]): {},
        "difference": {},
    }
    for name, change in _CHANGED.items():
        key = tuple({**_USUAL, **change}[level] for level in gap.columns.names)
        if key in gap.columns:
            for method, part in zip(parts, (*methods.values(), gap), strict=True):
                parts[method][name] = stats.estimate(part[key])
    one = side_by_side({name: stats.table(part) for name, part in parts.items()})
    curve = specifications.curve(gap)
    flips = specifications.reversals(curve)
    return Sensitivity(one, len(curve), specifications.outcome(curve), flips[flips > 0])
