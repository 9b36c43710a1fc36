"""What the rows of an audit answer: does LRP track leave-one-out, where, and at which cost?

Every table is made from the rows alone. Methods are compared text by text, with intervals over
texts. r is over a text's own tokens: special ones count in `sensitivity` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.removal.mask_gradient import Calibration, fitted, plain_mean
from lrputils.report import tables
from lrputils.report.audit_plan import COMPARED, LRP, OTHER, REMOVED, Audited, cost, label
from lrputils.report.leading import FEWEST, Lead, about, lead, needed
from lrputils.report.tables import CANNOT_TELL, side_by_side
from lrputils.study.agreement import (
    COEFFICIENTS,
    COUNTED,
    EVERY,
    NO_CLS,
    NORMALISATIONS,
    RAW,
    SUM_TO_ONE,
    WORDS,
    agreement,
    compare,
    over_texts,
)
from lrputils.study.by_text import Run
from lrputils.study.evaluation import REFERENCE

R = "r_content"
NAMES = (*LRP, *COMPARED, REFERENCE)
# A map tracks LOO if it explains half of LOO's variance over a text's tokens: r² = 1/2.
TRACKS = math.sqrt(0.5)
GROUPS, FOLDS = 2, 5
_ADDED = ("mask-gradient", "mask-gradient-2", REFERENCE)


class Verdict(NamedTuple):
    """Does LRP track LOO on this model and these texts?

    Attributes:
        answer: "yes", "no" or "cannot tell": whether the closest map's mean r is above `TRACKS`.
        method: that map's method.
        readout: where it is read.
        r: its mean r, its interval widened for the number of maps it was chosen from.
        texts: how many texts would decide.
        below: the share of texts on which its r is below `TRACKS`.
        table: AttnLRP, CP-LRP and their paired difference at each read-out.
    """

    answer: str
    method: str
    readout: str
    r: stats.Estimate
    texts: float
    below: float
    table: pd.DataFrame

    def __str__(self) -> str:
        half = f"{TRACKS:.2f}, where a map explains half of LOO's variance"
        said = {
            "yes": f"The interval lies above {half}.",
            "no": f"The interval lies below {half}.",
            CANNOT_TELL: f"Whether it is above {half}, {about(self.texts)} texts would tell.",
        }[self.answer]
        value, low, high = self.r[:3]
        return (
            f"{label(self.method, self.readout)} comes closest to LOO: mean r {value:.2f} "
            f"[{low:.2f}, {high:.2f}], n = {self.r.used}. {said} On {self.below:.0%} of the texts "
            f"r stays below. {self._order()}"
        )

    def _order(self) -> str:
        """Which of the two methods is ahead at each read-out."""
        if self.r.used < FEWEST:
            return f"So few texts put neither of the two ahead; {FEWEST} are the least."
        ahead: dict[str, list[str]] = {}
        for place, row in self.table.iterrows():
            low, high = row["difference low"], row["difference high"]
            names = {1: label(LRP[0]), -1: label(LRP[1]), 0: "neither"}
            name = names[int(low > 0) - int(high < 0)]
            ahead.setdefault(name, []).append(str(place))
        parts = [f"{name} is ahead at {', '.join(places)}" for name, places in ahead.items()]
        return f"Of the two, {'; '.join(parts)}."


def verdict(run: Run, column: str = R) -> Verdict:
    """Judge AttnLRP and CP-LRP at every read-out, by a column of the rows."""
    table = tables.readouts(run, *LRP, column)
    found = {(m, p): run.per_text(column, [m], p)[m] for m in LRP for p in table.index}
    method, readout = max(found, key=lambda name: round(found[name].mean(), 6))
    best = found[method, readout].dropna()
    # The best of so many on the same texts: its interval makes up for the choice.
    level = {"confidence": 1 - 0.05 / len(found)}
    own = stats.estimate(best, within=stats.CORRELATION, **level)
    told = tables.above(own.low, own.high, TRACKS) if own.used >= FEWEST else CANNOT_TELL
    names = {**{label(m): m for m in LRP}, "difference": "difference"}
    parts = {name: table[[m, f"{m} low", f"{m} high"]] for name, m in names.items()}
    ends = ["value", "low", "high"]
    table = side_by_side({name: part.set_axis(ends, axis=1) for name, part in parts.items()})
    below = float((best < TRACKS).mean())
    texts = needed(best - TRACKS, **level)
    return Verdict(told, method, readout, own, texts, below, table)


def compared(run: Audited, readout: str) -> pd.DataFrame:
    """Return r of every method by text, under their labels; the LRP maps at one read-out.

    The columns stand in the order of `attrs["passes"]`, the mean cost in forward passes.
    """
    found = pd.concat([run.per_text(R, [*LRP], readout), run.per_text(R, [*COMPARED])], axis=1)
    exact = run.rows[run.rows.method == REFERENCE]
    passes = {name: np.mean([cost(name, n) for n in exact.tokens]) for name in (*found, REFERENCE)}
    if run.units != "token":
        passes[REFERENCE] = exact.content.map(np.sum).mean()
    passes = pd.Series(passes).rename(label).sort_values(kind="stable")
    found = found.rename(columns=label)[[name for name in passes.index if name != label(REFERENCE)]]
    found.attrs["passes"] = passes
    return found


def by_method(found: pd.DataFrame, seconds: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Return the cost and mean r of each method of `compared`, and of LOO.

    Args:
        found: of `compared`.
        seconds: a text's, by method; left out if not given.
    """
    table = stats.estimates(found, within=stats.CORRELATION)[["value", "low", "high"]]
    table = table.rename(columns={"value": "r"})
    table.loc[label(REFERENCE)] = (1.0, math.nan, math.nan)
    passes = found.attrs["passes"]
    table.insert(0, "passes", passes)
    table.insert(1, "share of LOO", passes / passes[label(REFERENCE)])
    if seconds is not None:
        table["seconds"] = pd.Series({label(n): s for n, s in seconds.items() if n in NAMES})
    table.attrs["intervals"] = {"r": ("low", "high")}
    return table.sort_values("passes", kind="stable")


def at_budgets(found: pd.DataFrame) -> dict[float, Lead]:
    """Return who leads among the methods of `compared` that cost at most so many passes.

    The budgets are the methods' costs below LOO's. One is left out at which the best one and its
    rival could both be had for less.
    """
    passes, answers = found.attrs["passes"], {}
    spent = {name: round(taken, 1) for name, taken in passes.items()}
    for budget in sorted({taken for taken in spent.values() if taken < spent[label(REFERENCE)]}):
        answer = lead(found[[name for name in found if spent[name] <= budget]])
        if budget in (spent[answer.best], spent.get(answer.rival)) or not answers:
            answers[budget] = answer
    return answers


def layers(run: Run) -> dict[str, pd.DataFrame]:
    """Return what CP-LRP's rule in one layer alone adds to AttnLRP's r: read-out → by layer."""
    gains = {}
    for place in run.rows[run.rows.family == "single"].readout.unique():
        single, whole = run.ablations(R, place)["single"], run.per_text(R, ["attnlrp"], place)
        gains[place] = stats.estimates(single.sub(whole.attnlrp, axis=0), method="t")
    return gains


def in_layers(gains: Mapping[str, pd.DataFrame]) -> str:
    """Say in which layers the bypass raises r and in which it lowers it, at each read-out."""
    parts = []
    for place, table in gains.items():
        told = [
            f"{verb} r in {'layers' if sum(some) > 1 else 'layer'} "
            + ", ".join(map(str, table.index[some]))
            for verb, some in (("raises", table.low > 0), ("lowers", table.high < 0))
            if some.any()
        ]
        parts.append(f"{place}: it {' and '.join(told) or 'clearly changes r in no layer'}")
    return "; ".join(parts)


# The conventions of the verdict, and what one of them may be instead.
_USUAL = {
    "target": "predicted",
    "read-out": "word",
    "tokens": WORDS,
    "normalisation": RAW,
    "removal": "attention-mask",
    "coefficient": "Pearson",
}
_CHANGED = {
    "as above": {},
    "read at the sum": {"read-out": "sum"},
    "read behind the LayerNorm": {"read-out": "post-norm"},
    "special tokens count": {"tokens": EVERY},
    "… but the first": {"tokens": NO_CLS},
    "maps sum to one": {"normalisation": SUM_TO_ONE},
    "Spearman": {"coefficient": "Spearman"},
    "Kendall": {"coefficient": "Kendall"},
    "another removal": {"removal": "other"},
    "the runner-up's class": {"target": "runner-up"},
}


class Sensitivity(NamedTuple):
    """How AttnLRP − CP-LRP depends on conventions.

    Attributes:
        one: a row a choice changed alone: AttnLRP, CP-LRP and the difference, with intervals.
        count: specifications in all.
        outcome: the share of them with the difference above zero, below, or undecided.
        reversals: by choice, the share of pairs of its values that reverse the order.
    """

    one: pd.DataFrame
    count: int
    outcome: pd.Series
    reversals: pd.Series

    def __str__(self) -> str:
        first, second = (label(method) for method in LRP)
        flips, none = ", ".join(self.reversals.index), "No choice alone can reverse the order"
        return (
            f"Over {self.count} combinations of conventions {first} is ahead in "
            f"{self.outcome['above']:.0%} and {second} in {self.outcome['below']:.0%}; the rest is "
            f"undecided. {f'Reversed by one choice alone: {flips}' if flips else none}."
        )


def sensitivity(run: Audited) -> Sensitivity:
    """Compare the two methods under every convention that the rows of an audit hold."""
    return over_conventions(_maps(run))


def over_conventions(maps: pd.DataFrame) -> Sensitivity:
    """Compare the two methods under every convention that maps allow.

    Args:
        maps: of LOO, AttnLRP and CP-LRP, as of `lrputils.runs.frame.read_maps`; `target` is
            "predicted" or "runner-up", a removal beside the attention mask is "other".
    """
    conventions = COUNTED, NORMALISATIONS, tuple(COEFFICIENTS)
    maps = maps.drop(columns="tokens", errors="ignore")  # their number; here, which of them count
    parts = [agreement(part, *conventions) for _, part in maps.groupby("target", sort=False)]
    rows = pd.concat(parts).rename(columns={"readout": "read-out", "counted": "tokens"})
    gaps = compare(rows, *LRP, [*_USUAL])
    keys = {name: tuple({**_USUAL, **change}.values()) for name, change in _CHANGED.items()}
    keys = {name: key for name, key in keys.items() if key in gaps.index}
    means = over_texts(rows, ["method", *_USUAL])
    tables = {label(name): means.loc[name] for name in LRP} | {"difference": gaps}
    one = {name: table.loc[[*keys.values()]].set_axis([*keys]) for name, table in tables.items()}
    flips = reversals(gaps).reversed
    return Sensitivity(side_by_side(one), len(gaps), outcome(gaps), flips[flips > 0])


def _maps(run: Audited) -> pd.DataFrame:
    """The maps of LOO, AttnLRP and CP-LRP, as `over_conventions` takes them."""
    rows = run.rows[run.rows.family == ""].assign(model="", data="", id=run.rows.position)
    parts = []
    for target, end in (("predicted", ""), ("runner-up", OTHER)):
        names = {f"{name}{end}": name for name in (REFERENCE, *LRP)}
        names |= {} if end else {REMOVED: REFERENCE}
        part = rows[rows.method.isin([*names])]
        removals = {f"{REFERENCE}{end}": _USUAL["removal"], REMOVED: "other"}
        removal = part.method.map(removals).fillna("")
        parts.append(part.assign(target=target, removal=removal, method=part.method.map(names)))
    return pd.concat(parts)


class Calibrated(NamedTuple):
    """One open pass and half-removal, added by coefficients that are fitted on these texts.

    Attributes:
        how: the calibration, fitted on all texts.
        r: mean r with leave-one-out over a text's own tokens, each text held out in its fold.
        gain: r less that of the plain mean, which needs no exact map.
    """

    how: Calibration
    r: stats.Estimate
    gain: stats.Estimate

    @property
    def call(self) -> str:
        """The Python that computes the map."""
        numbers = ", ".join(f"{value:.3f}" for value in self.how.coefficients)
        how = f"lrp.Calibration(({numbers}), {self.how.groups}, {self.how.texts})"
        return f'lrp.attribute(clf, inputs, "mask-gradient", calibration={how})'

    def __str__(self) -> str:
        value, low, high = self.r[:3]
        gain, least, most = self.gain[:3]
        return (
            f"One pass and two groups, 9 passes, weighted by these texts' exact maps: "
            f"mean r {value:.2f} [{low:.2f}, {high:.2f}] on texts held out, n = "
            f"{self.r.used}. That is {gain:+.3f} [{least:+.3f}, {most:+.3f}] beside their plain "
            f"mean, which is fitted to nothing."
        )


def calibrated(run: Audited) -> Calibrated:
    """Fit a calibration on the texts of an audit, and judge it in folds."""
    maps = list(_of_texts(run))
    r, mean = [], []
    for number, (whole, grouped, exact, where) in enumerate(maps):
        fold = number % FOLDS
        how = fitted([m for i, m in enumerate(maps) if i % FOLDS != fold], GROUPS)
        for found, weights in ((r, how), (mean, plain_mean(GROUPS))):
            scores = weights.add_up(whole, grouped, where)
            found.append(float(stats.pearson(scores, exact, where)[0]))
    gain = stats.paired_difference(r, mean)
    r = stats.estimate(r, within=stats.CORRELATION)
    return Calibrated(fitted(maps, GROUPS), r, gain)


def _of_texts(run: Audited) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Each text's open map, grouped map, exact map and own tokens, (1, tokens)."""
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin(_ADDED)]
    for _, text in rows.groupby("position", sort=False):
        text = text.set_index("method")
        found = (torch.tensor(text.scores[name], dtype=torch.float64)[None] for name in _ADDED)
        yield (*found, torch.tensor(text.content.iloc[0], dtype=torch.bool)[None])


def outcome(table: pd.DataFrame) -> pd.Series:
    """Return the share of specifications whose interval is above zero, below, or reaches it."""
    above, below = (table.low > 0).mean(), (table.high < 0).mean()
    return pd.Series({"above": above, "below": below, "undecided": 1 - above - below})


def reversals(table: pd.DataFrame) -> pd.DataFrame:
    """Return by choice how often changing it alone reverses the answer, most often first.

    Compared are all pairs of specifications that differ in this choice alone, so that a choice with
    many values is not counted for their number: `reversed`, the share of pairs with one interval
    above zero and the other below; `undecided`, the share in which one of them, or both, reaches
    zero: nothing can be reversed there. A choice that never varies alone has no row.
    """
    signs = np.sign((table.low > 0) * 1.0 - (table.high < 0))
    found = {}
    for level in table.index.names:
        wide = signs.unstack(level).to_numpy()
        pairs = [wide[:, i] * wide[:, j] for j in range(wide.shape[1]) for i in range(j)]
        both = np.concatenate([*pairs, [np.nan]])
        both = both[~np.isnan(both)]
        if len(both):
            found[level] = {"reversed": (both < 0).mean(), "undecided": (both == 0).mean()}
    frame = pd.DataFrame.from_dict(found, orient="index", columns=["reversed", "undecided"])
    return frame.sort_values("reversed", ascending=False, kind="stable")
