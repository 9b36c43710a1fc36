"""What the rows of an audit answer: does LRP track leave-one-out, where, and at which cost?

Every table is made from the rows alone. Methods are compared text by text, with intervals over
texts. r is over a text's own tokens: special ones count in `sensitivity` alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from lrputils import stats
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import READOUTS
from lrputils.report import audit_plan
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
# Fewer texts decide nothing, and no answer asks for more.
FEWEST, MOST = 20, 1_000
# Texts → the largest share of draws in which one of two methods that tie was called ahead, over all
# recorded pairs and runs (tests/test_findings.py).
FALSE_LEADS = {20: 0.04, 50: 0.05, 100: 0.05}
_POWER = 0.8
CLEAR, ALIKE, CANNOT_TELL = "clear", "alike", "cannot tell"


def error_rate(texts: int) -> str:
    """Say how often so many texts call one of two methods ahead that tie; "" if none decides."""
    known = [n for n in FALSE_LEADS if n <= texts]
    if not known:
        return ""
    return (
        f"Where two methods tied, {texts} texts like those of the book's recorded runs called one "
        f"ahead in {FALSE_LEADS[known[-1]]:.0%} of the draws or fewer."
    )


def _deciding(values: pd.Series, null: float = 0.0, **options: Any) -> str:
    """Name the one text without which an interval of the mean is another; "" if there is none.

    Another is one that no longer holds the `null`, or does now, or is less than half as wide.
    `options` are those of `lrputils.stats.estimate`.
    """
    values = values.dropna()
    if len(values) < 4:
        return ""
    whole, far = stats.estimate(values, **options), (values - values.median()).abs().idxmax()
    rest = stats.estimate(values.drop(far), **options)
    sides = [np.sign([x.low - null, x.high - null]).tolist() for x in (whole, rest)]
    if sides[0] == sides[1] and rest.high - rest.low >= (whole.high - whole.low) / 2:
        return ""
    name = far + 1 if values.index.name == "position" else far  # as the page counts its texts
    return f" Without text {name} alone: {rest.value:.3f} [{rest.low:.3f}, {rest.high:.3f}]."


class Verdict(NamedTuple):
    """Does LRP track LOO on this model and these texts?

    Attributes:
        answer: "yes", "no" or "cannot tell": whether the closest map's r is above `TRACKS`, on
            average and on most texts, also with one text more that speaks against it.
        method: that map's method.
        readout: where it is read.
        r: its mean r, its interval widened for the number of maps it was chosen from.
        texts: how many texts would decide, infinite for more than `MOST`.
        deciding: which text alone makes the interval what it is.
        below: the share of texts on which its r is below `TRACKS`.
        table: mean r of the two judged methods and their paired difference, by (which, read-out).
    """

    answer: str
    method: str
    readout: str
    r: stats.Estimate
    texts: float
    deciding: str
    below: float
    table: pd.DataFrame

    def __str__(self) -> str:
        half = f"{TRACKS:.2f}, where a map explains half of LOO's variance"
        said = {
            "yes": f"It lies above {half}.",
            "no": f"It lies below {half}.",
            CANNOT_TELL: f"Whether it lies above {half}, is open: "
            f"{_about(self.texts, self.r.used)}.",
        }[self.answer]
        value, low, high = self.r[:3]
        interval = f" [{low:.2f}, {high:.2f}]" if low <= high else ""  # one text has none
        return (
            f"{label(self.method, self.readout)} comes closest to LOO: mean r {value:.2f}{interval}"
            f", n = {self.r.used}. {said}{self.deciding} "
            f"On {self.below:.0%} of the texts r stays below. {self._order()}"
        )

    def _order(self) -> str:
        """Which of the two methods is ahead, at each read-out if there are several."""
        if self.r.used < FEWEST:
            return "So few texts put neither of the two ahead."
        first, second, _ = self.table.index.unique(0)
        ahead: dict[str, list[str]] = {}
        gaps = self.table.loc["difference"]
        for place, row in gaps.iterrows():
            name = {1: first, -1: second}.get(row["lead"], "neither")
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
    gaps = {place: stats.paired_difference(*(r[m][place] for m in pair)) for place in places}
    parts["difference"] = stats.table(gaps)
    maps = pd.concat(r, axis=1)
    method, readout = maps.mean().round(6).idxmax()
    # The best of so many on the same texts: its interval makes up for the choice.
    told = tracks(maps[method, readout], confidence=1 - 0.05 / maps.shape[1])
    return Verdict(**told._asdict(), method=method, readout=readout, table=pd.concat(parts))


class Tracking(NamedTuple):
    """Whether a map tracks LOO; the attributes are those of a `Verdict`."""

    answer: str
    r: stats.Estimate
    texts: float
    deciding: str
    below: float


def tracks(values: pd.Series, **level: float) -> Tracking:
    """Judge a map by its r with LOO on each text; `level` is the `confidence` of an interval."""
    known = values.dropna()
    own, told = stats.estimate(known, within=stats.CORRELATION, **level), CANNOT_TELL
    above, worst = known - TRACKS, {"yes": TRACKS, "no": 1 - TRACKS}  # of a text with r = 0, r = 1
    if own.used >= FEWEST and not own.low <= TRACKS <= own.high:
        likely, side = ("yes", 1) if own.low > TRACKS else ("no", -1)
        if stats.leads(above, doubt=worst[likely], **level) == side:
            told = likely
    texts = needed(above, doubt=worst["yes" if above.mean() > 0 else "no"], **level)
    below = float((known < TRACKS).mean())
    return Tracking(told, own, texts, _deciding(known, TRACKS, **level), below)


def r_by_text(run: Audited, readout: str) -> pd.DataFrame:
    """Return r of every method by text, under their labels; the LRP maps at one read-out.

    The columns stand in the order of `attrs["passes"]`, the mean cost in forward passes.
    """
    places = {name: readout if name in LRP else "word" for name in run.names if name != REFERENCE}
    parts = [run.per_text(R, [name], place) for name, place in places.items()]
    found = pd.concat(parts, axis=1)
    exact = run.rows[run.rows.method == REFERENCE]
    names = (*found, REFERENCE)
    costs = {name: np.mean([run.passes(name, n) for n in exact.tokens]) for name in names}
    if run.units != "token":
        costs[REFERENCE] = exact.content.map(np.sum).mean()
    costs = pd.Series(costs).rename(label).sort_values(kind="stable")
    found = found.rename(columns=label)[[name for name in costs.index if name != label(REFERENCE)]]
    found.attrs["passes"] = costs
    return found


def by_method(found: pd.DataFrame) -> pd.DataFrame:
    """Return the cost and mean r of each method of `r_by_text`, and of LOO, cheapest first.

    A tool that does not tell its price has NaN, and comes last.
    """
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

    `outcome` is `CLEAR`, it leads every other one (`lrputils.stats.leads`); `ALIKE`, those that it
    does not lead are within `MARGIN` of it; or "cannot tell". `rival` is the one that is hardest to
    tell from it, "" if there is no other; `difference` is best − rival, its intervals widened for
    the number of rivals; `deciding` names a text that alone decides them; so many `texts` would
    decide, infinite for more than `MOST`.
    """

    best: str
    mean: stats.Estimate
    outcome: str
    rival: str
    difference: stats.Difference
    deciding: str
    texts: float

    def __str__(self) -> str:
        if not self.rival:
            return f"{self.best}: nothing else costs as little."
        value, low, high = self.difference[:3]
        gap = f"{value:+.3f} [{low:.3f}, {high:.3f}], on {self.difference.share:.0%} of the texts"
        doubted = self.outcome == CANNOT_TELL and low > 0 and self.difference.share_low > 0.5
        gap += "; with one text more against it the interval would hold zero" if doubted else ""
        told = {
            CLEAR: f"Use {self.best}: ahead of all others, of {self.rival} by {gap}.",
            ALIKE: f"Use {self.best} or {self.rival}: alike within {MARGIN} ({gap}).",
            CANNOT_TELL: f"Cannot tell {self.best} from {self.rival} ({gap}): "
            f"{_about(self.texts, self.mean.used, ', so take what is cheaper')}.",
        }[self.outcome]
        return told + self.deciding


def _about(texts: float, used: int, otherwise: str = "") -> str:
    """Say how many texts would tell, in two digits, as `used` ones estimate it."""
    if used < FEWEST:
        return f"too few texts to say how many would tell; {FEWEST} are the least"
    if math.isinf(texts):
        return f"{MOST:,} texts would hardly tell{otherwise}"
    step = 10 ** max(0, math.floor(math.log10(texts)) - 1)
    return f"about {math.ceil(texts / step) * step:,} texts would tell"


def lead(found: pd.DataFrame) -> Lead:
    """Compare the best of several methods with each other one, text by text.

    The best is chosen on the same texts: each of the k − 1 comparisons has a confidence of
    1 − 5% / (k − 1), so that a wrong one is seldom called clearly best.
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
        none = stats.paired_difference([math.nan], [math.nan])
        return Lead(best, mean, CLEAR, "", none, "", math.nan)
    level = {"confidence": 1 - 0.05 / gaps.shape[1]}
    others = found.drop(columns=best)
    pairs = {name: stats.paired_difference(found[best], others[name], **level) for name in others}
    table = stats.table(pairs)
    beaten = table["lead"] > 0
    decided = beaten | ((table.low >= -MARGIN) & (table.high <= MARGIN))
    decided &= len(found) >= FEWEST
    outcome = CANNOT_TELL if not decided.all() else CLEAR if beaten.all() else ALIKE
    open_ = {CANNOT_TELL: ~decided, CLEAR: beaten, ALIKE: ~beaten}[outcome]
    texts = {name: needed(gaps[name], MARGIN, **level) for name in table.index[open_]}
    rival = max(texts, key=lambda name: (texts[name], -gaps[name].mean()))
    alone = _deciding(gaps[rival], method="t", **level)
    return Lead(best, mean, outcome, str(rival), pairs[rival], alone, texts[rival])


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


def by_words(run: Audited, readout: str) -> pd.DataFrame:
    """Return what a mean r does not show of each method, and of LOO, by label.

    Returns:
        `rank r`, mean Spearman correlation with LOO over own tokens or units; `top word`, the share
        of texts whose largest score stands where LOO's does; `Δ`, mean LeRF less MoRF in logits,
        where curves were measured; `first token`, the mean share of the first token in the sum of a
        map's sizes.
    """
    rows = run.rows[(run.rows.family == "") & run.rows.method.isin(run.names)]
    places = {name: readout if name in LRP else "word" for name in run.names}
    rows = rows[rows.readout == rows.method.map(places)]
    exact = rows[rows.method == REFERENCE].set_index("position")
    told = []
    for row in rows.itertuples():
        own = np.asarray(row.content, dtype=bool)
        sizes, scores = np.abs(row.scores), np.asarray(row.scores)[own]
        loo = np.asarray(exact.scores[row.position])[own]
        told.append(
            {
                "rank r": float(stats.spearman(scores, loo)[0]),
                "top word": float(scores.argmax() == loo.argmax()),
                "first token": sizes[0] / sizes.sum() if sizes.any() else math.nan,
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


def in_layers(gains: Mapping[str, pd.DataFrame]) -> str:
    """Say in which layers the bypass raises r and in which it lowers it, at each read-out."""
    parts = []
    for place, table in gains.items():
        told = [
            f"{verb} r in {'layers' if sum(some) > 1 else 'layer'} "
            + ", ".join(map(str, table.index[some]))
            for verb, some in (("raises", table["lead"] > 0), ("lowers", table["lead"] < 0))
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
        above, below = self.every["lead"] > 0, self.every["lead"] < 0
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
        maps: of LOO and the `methods`, as of `experiments.frame.read_maps`; a removal beside the
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


_FIRST = 3  # times LOO's share of the first token, from where a map's is told


class Audit:
    """What an audit finds, shown as sentences.

    Attributes:
        run: the rows.
        checks: of `audit_plan.gates`.
        verdict: whether LRP tracks LOO.
        leads: who leads, by budget in forward passes.
        methods: a row a method: cost, r, and what `by_words` tells.
        tools: of each other tool whose maps were given, a sentence: do they track LOO, and what of
            one pass is ahead of them?
        conventions: what the order of the two judged methods depends on.
        gains: what CP-LRP's rule in one layer adds, by read-out.
        first: methods whose maps give the first token more than `_FIRST` times what LOO gives it.
    """

    def __init__(self, run: Audited, checks: pd.DataFrame) -> None:
        self.run, self.checks = run, checks
        self.verdict = verdict(run)
        self.r = r_by_text(run, self.verdict.readout)
        self.leads = at_budgets(self.r)
        self.methods = by_method(self.r)
        words = by_words(run, self.verdict.readout)
        self.methods[words.columns] = words
        self.conventions = sensitivity(run.maps(), judged(run))
        self.gains = layers(run)
        self.tools = {name: self._of_tool(name) for name in run.tools}
        shares = self.methods.pop("first token")
        self.first = {}
        if run.units == "token":
            most = _FIRST * shares[label(REFERENCE)]
            self.first = {name: share for name, share in shares.items() if share > most}

    @property
    def sound(self) -> bool:
        """Whether all checks passed; the rest says nothing where one failed."""
        return bool(self.checks.passed.all())

    def _of_tool(self, name: str) -> str:
        """Say whether a tool's maps track LOO, and which maps of one pass are ahead of them."""
        answer, r, texts, deciding, below = tracks(self.r[name])
        if not r.used:
            return f"{name}: each map is constant, and has no r."
        constant = f", {r.dropped} constant maps left out" if r.dropped else ""
        told = {"yes": "tracks LOO", "no": "does not track LOO"}.get(answer)
        told = told or f"may track LOO or not: {_about(texts, r.used)}"
        beside = [label(each) for each in (judged(self.run)[0], "mask-gradient")]
        gaps = []
        for other in (each for each in beside if each in self.r):
            gap = stats.paired_difference(self.r[other], self.r[name], confidence=1 - 0.05 / 2)
            side = {1: f"{other} is ahead of it", -1: f"It is ahead of {other}"}.get(gap.lead)
            side = side or f"Neither it nor {other} leads"
            interval = f"{gap.value:+.3f} [{gap.low:.3f}, {gap.high:.3f}]"
            gaps.append(f"{side}: {interval}, on {gap.share:.0%} of the texts.")
        return (
            f"{name} {told}. Mean r {r.value:.2f} [{r.low:.2f}, {r.high:.2f}], n = {r.used}"
            f"{constant}; below {TRACKS:.2f} on {below:.0%} of the texts.{deciding} "
            + " ".join(gaps)
        )

    def of_first(self) -> str:
        """Say which maps put the first token far above what LOO gives it; "" if none does."""
        told = [f"{name} ({share:.0%} of a map)" for name, share in self.first.items()]
        said = f"More than {_FIRST} times LOO's share at the first token: {', '.join(told)}."
        return said if told else ""

    def __str__(self) -> str:
        lines = [str(self.verdict), "", *self.tools.values()]
        lines += [f"up to {cost:g} passes: {lead}" for cost, lead in self.leads.items()]
        lines += ["", str(self.conventions), *filter(None, [self.of_first()])]
        for check, row in self.checks.iterrows():
            lines.append(f"{'passed' if row.passed else 'FAILED'}: {check}")
        return "\n".join(lines)

    __repr__ = __str__


def audit(
    classifier: Classifier,
    texts: Any,
    *,
    scores: Any = None,
    units: str = "token",
    target: int | str | None = None,
    max_length: int | None = None,
    batch_size: int = 4,
    curves: int | None = None,
) -> Audit:
    """Find whether LRP, and other tools' maps, track leave-one-out on a model and texts.

    `lrputils audit` writes the same into a page, and keeps the rows.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer, or texts in any form that it takes.
        scores: maps of other tools, name → table or sequence; see `lrputils.study.supplied`.
        units: what is removed, scored and compared: each "token", "word" or "sentence".
        target: the class to explain, a number or a label; the predicted one if not given.
        max_length: longer texts are cut there; at the model's limit if not given.
        batch_size: texts a batch.
        curves: also remove tokens along every map, so many at once, for the column Δ.

    Raises:
        ValueError: see `lrputils.evaluate`.
    """
    texts = load_texts([texts] if isinstance(texts, str) else texts)
    sizes = {"units": units, "target": target, "max_length": max_length}
    sizes |= {"batch_size": batch_size, "curves": curves}
    run = audit_plan.measure(classifier, texts, scores, **sizes)
    return Audit(run, audit_plan.gates(classifier, texts.take(range(2)[: len(texts)]), max_length))
