"""What the rows of an audit answer: does LRP track leave-one-out, where, and at which cost?

Every table is made from the rows alone. Methods are compared text by text, with intervals over
texts. r is over a text's own tokens: special ones count in `sensitivity` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from lrputils import stats
from lrputils.model.readout import READOUTS
from lrputils.report.audit_plan import LRP, Audited, cost, judged, label
from lrputils.report.display import side_by_side
from lrputils.report.figures.style import NAMES
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
# A map tracks LOO if it explains half of LOO's variance over a text's tokens: r² = 1/2.
TRACKS = math.sqrt(0.5)
# Methods are alike if their means differ by no more.
MARGIN = 0.02
# Fewer texts decide nothing: from here on 95% intervals of the differences covered 93% or more, on
# the recorded runs (chapter 10).
FEWEST = 20
_POWER = 0.8
CLEAR, ALIKE, CANNOT_TELL = "clear", "alike", "cannot tell"


class Verdict(NamedTuple):
    """Does LRP track LOO on this model and these texts?

    Attributes:
        answer: "yes", "no" or "cannot tell": whether the closest map's mean r is above `TRACKS`.
        method: that map's method.
        readout: where it is read.
        r: its mean r, its interval widened for the number of maps it was chosen from.
        texts: how many texts would decide.
        below: the share of texts on which its r is below `TRACKS`.
        table: mean r of the two judged methods and their paired difference, by (which, read-out).
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
            CANNOT_TELL: f"Whether it is above {half}, {_about(self.texts)} texts would tell.",
        }[self.answer]
        value, low, high = self.r[:3]
        return (
            f"{label(self.method, self.readout)} comes closest to LOO: mean r {value:.2f} "
            f"[{low:.2f}, {high:.2f}], n = {self.r.used}. {said} On {self.below:.0%} of the texts "
            f"r stays below. {self._order()}"
        )

    def _order(self) -> str:
        """Which of the two methods is ahead, at each read-out if there are several."""
        if self.r.used < FEWEST:
            return f"So few texts put neither of the two ahead; {FEWEST} are the least."
        first, second, _ = self.table.index.unique(0)
        ahead: dict[str, list[str]] = {}
        gaps = self.table.loc["difference"]
        for place, row in gaps.iterrows():
            name = first if row.low > 0 else second if row.high < 0 else "neither"
            ahead.setdefault(name, []).append(NAMES.get(place, place))
        parts = [f"{name} is ahead at {', '.join(places)}" for name, places in ahead.items()]
        if len(gaps) == 1:
            parts = [f"{name} is ahead" for name in ahead]
        return f"Of the two, {'; '.join(parts)}."


def verdict(run: Run) -> Verdict:
    """Judge AttnLRP and CP-LRP at every read-out; without rules, `audit_plan.GRADIENTS`."""
    pair = judged(run)
    known = set(run.rows.readout[run.rows.method.isin(pair)])
    places = [place for place in READOUTS if place in known]
    r = {m: pd.DataFrame({p: run.per_text(R, [m], p)[m] for p in places}) for m in pair}
    parts = {label(method): stats.estimates(r[method]) for method in pair}
    parts["difference"] = stats.estimates(r[pair[0]] - r[pair[1]], method="t")
    maps = pd.concat(r, axis=1)
    method, readout = maps.mean().round(6).idxmax()
    best = maps[method, readout].dropna()
    # The best of so many on the same texts: its interval makes up for the choice.
    level = {"confidence": 1 - 0.05 / maps.shape[1]}
    own, told = stats.estimate(best, within=stats.CORRELATION, **level), CANNOT_TELL
    if own.used >= FEWEST and not own.low <= TRACKS <= own.high:
        told = "yes" if own.low > TRACKS else "no"
    below, texts = float((best < TRACKS).mean()), needed(best - TRACKS, **level)
    return Verdict(told, method, readout, own, texts, below, pd.concat(parts))


def r_by_text(run: Audited, readout: str) -> pd.DataFrame:
    """Return r of every method by text, under their labels; the LRP maps at one read-out.

    The columns stand in the order of `attrs["passes"]`, the mean cost in forward passes.
    """
    places = {name: readout if name in LRP else "word" for name in run.names if name != REFERENCE}
    parts = [run.per_text(R, [name], place) for name, place in places.items()]
    found = pd.concat(parts, axis=1)
    exact = run.rows[run.rows.method == REFERENCE]
    passes = {name: np.mean([cost(name, n) for n in exact.tokens]) for name in (*found, REFERENCE)}
    if run.units != "token":
        passes[REFERENCE] = exact.content.map(np.sum).mean()
    passes = pd.Series(passes).rename(label).sort_values(kind="stable")
    found = found.rename(columns=label)[[name for name in passes.index if name != label(REFERENCE)]]
    found.attrs["passes"] = passes
    return found


def by_method(found: pd.DataFrame) -> pd.DataFrame:
    """Return the cost and mean r of each method of `r_by_text`, and of LOO, cheapest first."""
    table = stats.estimates(found, within=stats.CORRELATION)[["value", "low", "high"]]
    table = table.rename(columns={"value": "r"})
    table.loc[label(REFERENCE)] = (1.0, math.nan, math.nan)
    passes = found.attrs["passes"]
    table.insert(0, "passes", passes)
    table.insert(1, "share of LOO", passes / passes[label(REFERENCE)])
    table.attrs["intervals"] = {"r": ("low", "high")}
    return table.sort_values("passes", kind="stable")


class Lead(NamedTuple):
    """The best of several methods, and whether it leads.

    `outcome` is `CLEAR`, it is ahead of every other one; `ALIKE`, those that it is not ahead of are
    within `MARGIN` of it; or "cannot tell". `rival` is the one that is hardest to tell from it, ""
    if there is no other; `difference` is best − rival, its interval widened for the number of
    rivals; so many `texts` would decide.
    """

    best: str
    mean: stats.Estimate
    outcome: str
    rival: str
    difference: stats.Estimate
    texts: float

    def __str__(self) -> str:
        if not self.rival:
            return f"{self.best}: nothing else costs as little."
        value, low, high = self.difference[:3]
        gap = f"{value:+.3f} [{low:.3f}, {high:.3f}]"
        return {
            CLEAR: f"Use {self.best}: ahead of all others, of {self.rival} by {gap}.",
            ALIKE: f"Use {self.best} or {self.rival}: alike within {MARGIN} ({gap}).",
            CANNOT_TELL: f"Cannot tell {self.best} from {self.rival} ({gap}): n too small, "
            f"{_about(self.texts)} texts needed in all.",
        }[self.outcome]


def _about(texts: float) -> str:
    """Write a number of texts in two digits, as an estimate: "about 140"."""
    if math.isnan(texts):
        return "two or more"
    if texts >= 1e6:
        return "more than a million"
    step = 10 ** max(0, math.floor(math.log10(texts)) - 1)
    return f"about {math.ceil(texts / step) * step:,}"


def lead(found: pd.DataFrame) -> Lead:
    """Compare the best of several methods with each other one, text by text.

    The best is chosen on the same texts. So that one which is not is called clearly best with a
    probability of 5% at most, each of the k − 1 intervals has a confidence of 1 − 5% / (k − 1).
    `found` is (texts, methods), the higher the better; a text that lacks a value is left out.

    Raises:
        ValueError: no text has all values.
    """
    found = found.dropna(axis=1, how="all").dropna()
    if found.empty:
        raise ValueError("no text has a correlation: its maps, or LOO, are constant")
    best = str(found.mean().idxmax())
    mean = stats.estimate(found[best], within=stats.CORRELATION)
    gaps = found.drop(columns=best).rsub(found[best], axis=0)
    if gaps.empty:
        return Lead(best, mean, CLEAR, "", stats.estimate([math.nan]), math.nan)
    level = {"confidence": 1 - 0.05 / gaps.shape[1]}
    table = stats.estimates(gaps, method="t", **level)
    beaten = table.low > 0
    decided = beaten | ((table.low >= -MARGIN) & (table.high <= MARGIN))
    decided &= len(found) >= FEWEST
    outcome = CANNOT_TELL if not decided.all() else CLEAR if beaten.all() else ALIKE
    open_ = {CANNOT_TELL: ~decided, CLEAR: beaten, ALIKE: ~beaten}[outcome]
    texts = {name: needed(gaps[name], MARGIN, **level) for name in table.index[open_]}
    rival = max(texts, key=lambda name: (texts[name], -gaps[name].mean()))
    gap = stats.paired_difference(found[best], found[rival], **level)
    return Lead(best, mean, outcome, str(rival), gap, texts[rival])


def needed(differences: pd.Series, margin: float = 0.0, *, confidence: float = 0.95) -> float:
    """Return how many texts decide a paired comparison, if these differences are typical.

    Decided means that Student's interval leaves 0 on one side, or lies within ± `margin`; the
    answer is the smaller number at which one of the two happens with a probability of 80%: the
    smallest n with (t + z) s / √n ≤ what is left to decide. It is infinite if the mean is 0 and
    there is no margin, NaN below two texts.
    """
    values = differences.dropna()
    if len(values) < 2:
        return math.nan
    size, spread, texts = abs(values.mean()), values.std(), math.inf
    apart = spread / size if size else math.inf
    within = spread / (margin - size) if size < margin else math.inf
    for _ in range(8):  # from the normal quantile upwards: t's depends on n itself
        t = stdtrit(max(texts - 1, 1), 0.5 + confidence / 2)
        ends = min((t + ndtri(_POWER)) * apart, (t + ndtri(0.5 + _POWER / 2)) * within)
        texts = max(np.ceil(ends**2), FEWEST)
    return float(texts)


def at_budgets(found: pd.DataFrame) -> dict[float, Lead]:
    """Return who leads among the methods of `r_by_text` that cost at most so many passes.

    The budgets are the methods' costs below LOO's. One is left out at which the best one and its
    rival could both be had for less.
    """
    spent, answers = found.attrs["passes"].round(1), {}
    for budget in sorted({*spent[spent < spent[label(REFERENCE)]]}):
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
        parts.append(
            f"{NAMES.get(place, place)}: it {' and '.join(told) or 'clearly changes r in no layer'}"
        )
    return "; ".join(parts)


# The conventions of the verdict, and what one of them may be instead.
_USUAL = {
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
}


class Sensitivity(NamedTuple):
    """How the difference of two methods depends on conventions.

    Attributes:
        one: a row a choice changed alone: both methods and the difference, with intervals.
        every: the difference under every combination of choices, indexed by them.
        names: what the two are called.
    """

    one: pd.DataFrame
    every: pd.DataFrame
    names: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.names
        above, below = self.every.low > 0, self.every.high < 0
        signs, turning = above.astype(int) - below, []
        for choice in signs.index.names:  # the others being the same
            alone = signs.unstack(choice)
            if ((alone.min(axis=1) < 0) & (alone.max(axis=1) > 0)).any():
                turning.append(choice)
        told = "No choice alone can reverse the order"
        if turning:
            told = f"Reversed by one choice alone: {', '.join(turning)}"
        return (
            f"Over {len(signs)} combinations of conventions {first} is ahead in {above.mean():.0%} "
            f"and {second} in {below.mean():.0%}; the rest is undecided. {told}."
        )


def sensitivity(maps: pd.DataFrame, methods: tuple[str, str] = LRP) -> Sensitivity:
    """Compare two methods under every convention that maps allow.

    Args:
        maps: of LOO and the `methods`, as of `lrputils.runs.frame.read_maps`; a removal beside the
            attention mask is "other".
    """
    maps = maps.drop(columns="tokens", errors="ignore")  # their number; here, which of them count
    rows = agreement(maps, COUNTED, NORMALISATIONS, tuple(COEFFICIENTS))
    rows = rows.rename(columns={"readout": "read-out", "counted": "tokens"})
    gaps = compare(rows, *methods, [*_USUAL])
    keys = {name: tuple({**_USUAL, **change}.values()) for name, change in _CHANGED.items()}
    keys = {name: key for name, key in keys.items() if key in gaps.index}
    means = over_texts(rows, ["method", *_USUAL])
    tables = {label(name): means.loc[name] for name in methods} | {"difference": gaps}
    one = {name: table.loc[[*keys.values()]].set_axis([*keys]) for name, table in tables.items()}
    first, second = map(label, methods)
    return Sensitivity(side_by_side(one), gaps, (first, second))
