"""What the rows of an audit answer: does LRP track leave-one-out, where, and at which cost?

Every table is made from the rows alone. Methods are compared text by text, with intervals over
texts. r is over a text's own tokens: special ones count in `sensitivity` alone. What is said of the
answers is in `lrputils.report.audit_sentences`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from lrputils import stats
from lrputils.model.readout import READOUTS
from lrputils.report.audit_plan import LRP, Audited, judged, label
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
# Fewer texts decide nothing, and no answer asks for more. From fewer than `FORECAST` it is not said
# that no number decides: a fifth of the draws of 24 recorded texts would, where 300 decide.
FEWEST, FORECAST, MOST = 20, 100, 1_000
# Texts → the largest share of draws in which one of two methods that tie was called ahead, over all
# recorded pairs and runs (tests/test_findings.py).
FALSE_LEADS = {20: 0.04, 50: 0.05, 100: 0.05}
_POWER = 0.8
CLEAR, ALIKE, CANNOT_TELL = "clear", "alike", "cannot tell"


class Verdict(NamedTuple):
    """Does a map track LOO on this model and these texts?

    Attributes:
        answer: "yes", "no" or "cannot tell": whether its r is above `TRACKS`, on average and on
            most texts, also with one text more that speaks against it.
        r: its mean r; of the closest of several maps its interval is widened for their number.
        texts: how many texts would decide, infinite for more than `MOST`.
        below: the share of texts on which its r is below `TRACKS`.
        method: whose map it is, of the closest of several.
        readout: where that map is read.
        table: mean r of the two judged methods and their paired difference, by (which, read-out).
    """

    answer: str
    r: stats.Estimate
    texts: float
    below: float
    method: str = ""
    readout: str = ""
    table: pd.DataFrame = pd.DataFrame()


def verdict(run: Run) -> Verdict:
    """Judge AttnLRP and CP-LRP at every read-out; without rules, `audit_plan.GRADIENTS`."""
    pair = judged(run)
    known = set(run.rows.readout[run.rows.method.isin(pair)])
    places = [place for place in READOUTS if place in known]
    r = {m: pd.DataFrame({p: run.per_text(R, [m], p)[m] for p in places}) for m in pair}
    first, second = r.values()
    gaps = {p: stats.paired_difference(first[p], second[p]) for p in places}
    bounds = {"within": stats.CORRELATION}
    parts = {label(method): stats.estimates(r[method], **bounds) for method in pair}
    table = pd.concat({**parts, "difference": stats.table(gaps)})
    maps = pd.concat(r, axis=1)
    method, readout = maps.mean().round(6).idxmax()
    # The best of so many on the same texts: its interval makes up for the choice.
    told = tracks(maps[method, readout], confidence=1 - 0.05 / maps.shape[1])
    return told._replace(method=method, readout=readout, table=table)


def tracks(values: pd.Series, confidence: float = 0.95) -> Verdict:
    """Judge a map by its r with LOO on each text; `confidence` is that of the interval."""
    known = values.dropna()
    r = stats.estimate(known, within=stats.CORRELATION, confidence=confidence)
    above, worst = known - TRACKS, {"yes": TRACKS, "no": 1 - TRACKS}  # of a text with r = 0, r = 1
    answer = CANNOT_TELL
    if r.used >= FEWEST and not r.low <= TRACKS <= r.high:
        likely, side = ("yes", 1) if r.low > TRACKS else ("no", -1)
        if stats.leads(above, confidence, doubt=worst[likely]) == side:
            answer = likely
    doubt = worst["yes" if above.mean() > 0 else "no"]
    texts = needed(above, doubt=doubt, confidence=confidence)
    return Verdict(answer, r, texts, float((known < TRACKS).mean()))


def r_by_text(run: Audited, readout: str) -> pd.DataFrame:
    """Return r of every method by text, under their labels; the LRP maps at one read-out.

    The columns stand in the order of `attrs["passes"]`, the mean cost in forward passes.
    """
    places = {name: readout if name in LRP else "word" for name in run.names if name != REFERENCE}
    parts = [run.per_text(R, [name], place) for name, place in places.items()]
    found = pd.concat(parts, axis=1)
    costs = run.rows.groupby("method").passes.mean()[[*found, REFERENCE]]
    costs = costs.rename(label).sort_values(kind="stable")
    found = found.rename(columns=label)[[name for name in costs.index if name != label(REFERENCE)]]
    found.attrs["passes"] = costs
    return found


def by_method(found: pd.DataFrame) -> pd.DataFrame:
    """Return the cost and mean r of each method of `r_by_text`, and of LOO, cheapest first.

    `tracks` is the answer for each map by itself (`tracks`). A tool that does not tell its price
    has NaN, and comes last.
    """
    table = stats.estimates(found, within=stats.CORRELATION)[["value", "low", "high"]]
    table = table.rename(columns={"value": "r"})
    told = {name: tracks(found[name]).answer for name in found}
    table.loc[label(REFERENCE)] = (1.0, math.nan, math.nan)
    passes = found.attrs["passes"]
    table.insert(0, "passes", passes)
    table.insert(1, "share of LOO", passes / passes[label(REFERENCE)])
    table["tracks"] = pd.Series(told)
    table.attrs["intervals"] = {"r": ("low", "high")}
    return table.sort_values(["passes", "r"], kind="stable")


class Lead(NamedTuple):
    """The best of several methods, and whether it leads.

    Attributes:
        best: the method with the highest mean.
        mean: that mean.
        outcome: `CLEAR`, it leads every other one (`lrputils.stats.leads`); `ALIKE`, those that it
            does not lead are within `MARGIN` of it; or `CANNOT_TELL`.
        rival: the one that is hardest to tell from it; "" if there is no other.
        difference: best − rival, its intervals widened for the number of rivals; None without one.
        texts: so many would decide, infinite for more than `MOST`.
    """

    best: str
    mean: stats.Estimate
    outcome: str
    rival: str = ""
    difference: stats.Difference | None = None
    texts: float = math.nan


def lead(r: pd.DataFrame) -> Lead:
    """Compare the best of several methods with each other one, text by text.

    The best is chosen on the same texts: each of the k − 1 comparisons has a confidence of
    1 − 5% / (k − 1), so that a wrong one is seldom called clearly best.
    `r` is (texts, methods), the higher the better; a text that lacks a value is left out.

    Raises:
        ValueError: no text has all values.
    """
    r = r.dropna(axis=1, how="all").dropna()
    if r.empty:
        raise ValueError("no text has a correlation: its maps, or LOO, are constant")
    best = str(r.mean().idxmax())
    mean = stats.estimate(r[best], within=stats.CORRELATION)
    others = r.drop(columns=best)
    if others.empty:
        return Lead(best, mean, CLEAR)
    confidence = 1 - 0.05 / others.shape[1]
    gaps = {}
    outcomes = {}
    for name in others:
        gap = stats.paired_difference(r[best], others[name], confidence=confidence)
        alike = gap.low >= -MARGIN and gap.high <= MARGIN
        outcomes[name] = CLEAR if gap.lead > 0 else ALIKE if alike else CANNOT_TELL
        if len(r) < FEWEST:
            outcomes[name] = CANNOT_TELL
        gaps[name] = gap
    outcome = max(outcomes.values(), key=(CLEAR, ALIKE, CANNOT_TELL).index)
    texts = {
        name: needed(r[best] - others[name], MARGIN, confidence=confidence)
        for name in others
        if outcomes[name] == outcome
    }
    rival = max(texts, key=lambda name: (texts[name], -gaps[name].value))
    return Lead(best, mean, outcome, str(rival), gaps[rival], texts[rival])


def needed(
    differences: pd.Series, margin: float = 0.0, *, doubt: float = 1.0, confidence: float = 0.95
) -> float:
    """Return how many texts decide a paired comparison, if these differences are typical.

    Decided means that one side leads (`lrputils.stats.leads`, which explains `doubt`), or that
    Student's interval lies within ± `margin`; the answer is the smallest number, from `FEWEST` to
    `MOST`, at which one of the two happens with a probability of 80%. It is infinite where none
    does, NaN below two texts.
    """
    values = differences.dropna()
    if len(values) < 2:
        return math.nan
    size, spread = abs(values.mean()), values.std()
    share = (np.sign(values) == np.sign(values.mean())).mean()
    n = np.arange(FEWEST, MOST + 1)
    t, sure = stdtrit(n - 1, 0.5 + confidence / 2), ndtri(0.5 + confidence / 2)
    # The mean and its standard error with one text more.
    mean = (n * size - doubt) / (n + 1)
    error = np.sqrt(spread**2 / n + ((size + doubt) / (n + 1)) ** 2)
    ahead = mean >= (t + ndtri(_POWER)) * error
    ahead &= (share - 0.5) * np.sqrt(n) >= sure / 2 + ndtri(_POWER) * (share * (1 - share)) ** 0.5
    alike = margin - size >= (t + ndtri(0.5 + _POWER / 2)) * spread / np.sqrt(n)
    decided = ahead | alike
    return float(n[decided.argmax()]) if decided.any() else math.inf


def at_budgets(r: pd.DataFrame) -> dict[float, Lead]:
    """Return who leads among the methods of `r_by_text` that cost at most so many passes.

    The budgets are the methods' costs below LOO's. One is left out at which the best one and its
    rival could both be had for less.
    """
    spent, answers = r.attrs["passes"].round(), {}
    for budget in sorted({*spent[spent < spent[label(REFERENCE)]]}):
        answer = lead(r[[name for name in r if spent[name] <= budget]])
        if budget in (spent[answer.best], spent.get(answer.rival)) or not answers:
            answers[budget] = answer
    return answers


def by_words(run: Audited, readout: str) -> pd.DataFrame:
    """Return what a mean r does not show of each method, and of LOO, by label.

    Returns:
        `rank r`, mean Spearman correlation with LOO over own tokens or units; `top word`, the share
        of texts whose largest score stands where LOO's does; `Δ`, mean LeRF less MoRF in logits,
        where curves were measured.
    """
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin(run.names)]
    places = {name: readout if name in LRP else "word" for name in run.names}
    rows = rows[rows.readout == rows.method.map(places)]
    exact = rows[rows.method == REFERENCE].set_index("position")
    told = []
    for row in rows.itertuples():
        own = np.asarray(row.content, dtype=bool)
        scores = np.asarray(row.scores)[own]
        loo = np.asarray(exact.scores[row.position])[own]
        told.append(
            {
                "rank r": float(stats.spearman(scores, loo)[0]),
                "top word": float(scores.argmax() == loo.argmax()),
            }
        )
    facts = pd.DataFrame(told, index=rows.index).assign(method=rows.method.map(label))
    if "delta" in rows:
        facts.insert(2, "Δ", rows.delta)
    return facts.groupby("method").mean()


def layers(run: Run) -> dict[str, pd.DataFrame]:
    """Return what CP-LRP's rule in one layer alone adds to AttnLRP's r: read-out → by layer."""
    gains = {}
    for place in run.rows[run.rows.family == "single"].readout.unique():
        single, whole = run.ablations(R, place)["single"], run.per_text(R, ["attnlrp"], place)
        gains[place] = stats.table(
            {layer: stats.paired_difference(single[layer], whole.attnlrp) for layer in single}
        )
    return gains


# The conventions of the verdict, and what one of them may be instead.
_USUAL = {
    "read-out": "word",
    "tokens": WORDS,
    "normalisation": RAW,
    "removal": "attention-mask",
    "coefficient": "Pearson",
}
_CHANGED = {
    "none changed": {},
    "read at the sum": {"read-out": "sum"},
    "read at the LayerNorm": {"read-out": "post-norm"},
    "special tokens count": {"tokens": EVERY},
    "all but the first count": {"tokens": NO_CLS},
    "maps sum to one": {"normalisation": SUM_TO_ONE},
    "Spearman": {"coefficient": "Spearman"},
    "Kendall": {"coefficient": "Kendall"},
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


def sensitivity(maps: pd.DataFrame, methods: tuple[str, str] = LRP) -> Sensitivity:
    """Compare two methods under every convention that maps allow.

    Args:
        maps: of LOO and the `methods`, as of `experiments.frame.read_maps`.
    """
    maps = maps.drop(columns="tokens", errors="ignore")  # their number; here, which of them count
    rows = agreement(maps, COUNTED, NORMALISATIONS, tuple(COEFFICIENTS))
    rows = rows.rename(columns={"readout": "read-out", "counted": "tokens"})
    gaps = compare(rows, *methods, [*_USUAL])
    others = [each for each in rows.removal.unique() if each != _USUAL["removal"]]
    changed = _CHANGED | {f"LOO by {NAMES[each]}": {"removal": each} for each in others}
    keys = {name: tuple({**_USUAL, **change}.values()) for name, change in changed.items()}
    keys = {name: key for name, key in keys.items() if key in gaps.index}
    few = rows.set_index([*_USUAL]).loc[[*keys.values()]].reset_index()
    means = over_texts(few, ["method", *_USUAL])
    tables = {label(name): means.loc[name] for name in methods} | {"difference": gaps}
    one = {name: table.loc[[*keys.values()]].set_axis([*keys]) for name, table in tables.items()}
    first, second = map(label, methods)
    return Sensitivity(side_by_side(one), gaps, (first, second))


class Tool(NamedTuple):
    """What is found of another tool's maps: do they track LOO, and what of one pass leads them?

    Attributes:
        verdict: of `tracks`.
        gaps: the label of a map of this package → its mean r less the tool's.
    """

    verdict: Verdict
    gaps: dict[str, stats.Difference]


def judge_tool(r: pd.DataFrame, name: str, best: str) -> Tool:
    """Judge a tool's maps beside those of the method `best`, and the mask gradient's.

    `r` is that of `r_by_text`.
    """
    beside = [other for other in (label(best), label("mask-gradient")) if other in r]
    confidence = 1 - 0.05 / 2
    return Tool(
        tracks(r[name]),
        {o: stats.paired_difference(r[o], r[name], confidence=confidence) for o in beside},
    )
