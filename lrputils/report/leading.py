"""Which of several methods leads, text by text, and how many texts would decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from lrputils import stats
from lrputils.report.tables import CANNOT_TELL

# Methods are alike if their means differ by no more.
MARGIN = 0.02
# Fewer texts decide nothing: from here on 95% intervals of the differences covered 93% or more, on
# the recorded runs (chapter 10).
FEWEST = 20
_POWER = 0.8
CLEAR, ALIKE = "clear", "alike"


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
            f"{about(self.texts)} texts needed in all.",
        }[self.outcome]


def about(texts: float) -> str:
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
    race = _race(found.to_numpy(float)[None])
    number = int(race.best[0])
    best, rest = str(found.columns[number]), found.columns.delete(number)
    mean = stats.estimate(found[best], within=stats.CORRELATION)
    if not len(rest):
        return Lead(best, mean, CLEAR, "", stats.estimate([np.nan]), math.nan)
    beaten, open_ = (np.delete(part[0], number) for part in (race.beaten, race.undecided))
    outcome = CANNOT_TELL if open_.any() else CLEAR if beaten.all() else ALIKE
    rivals = rest[open_] if open_.any() else rest if beaten.all() else rest[~beaten]
    texts = {
        name: needed(found[best] - found[name], MARGIN, confidence=race.confidence)
        for name in rivals
    }
    rival = max(rivals, key=lambda name: (texts[name], found[name].mean()))
    gap = stats.paired_difference(found[best], found[rival], confidence=race.confidence)
    return Lead(best, mean, outcome, str(rival), gap, texts[rival])


class _Race(NamedTuple):
    """The best method of each draw, (draws,), and (draws, methods) how the others stand to it."""

    best: np.ndarray
    beaten: np.ndarray
    undecided: np.ndarray
    texts: np.ndarray
    confidence: float


def _race(values: np.ndarray) -> _Race:
    """Compare the best method with all others in each draw of texts: (draws, texts, methods)."""
    draws, texts, methods = values.shape
    confidence = 1 - 0.05 / max(methods - 1, 1)
    best = values.mean(axis=1).argmax(axis=1)
    gaps = np.take_along_axis(values, best[:, None, None], axis=2) - values
    low, high = stats.t_interval(gaps, confidence)
    own = np.arange(methods) == best[:, None]
    beaten = (low > 0) & ~own
    close = (low >= -MARGIN) & (high <= MARGIN)
    undecided = ~own & ((texts < FEWEST) | ~(beaten | close))
    spread = gaps.std(axis=1, ddof=1) if texts > 1 else np.full((draws, methods), np.nan)
    wanted = _needed(gaps.mean(axis=1), spread, MARGIN, confidence)
    return _Race(best, beaten, undecided, wanted, confidence)


def needed(differences: pd.Series, margin: float = 0.0, *, confidence: float = 0.95) -> float:
    """Return how many texts decide a paired comparison, if these differences are typical.

    Decided means that Student's interval leaves 0 on one side, or lies within ± `margin`; the
    answer is the smaller number at which one of the two happens with a probability of 80%. It is
    infinite if the mean is 0 and there is no margin, NaN below two texts.
    """
    values = differences.dropna()
    if len(values) < 2:
        return math.nan
    return float(_needed(np.array(values.mean()), np.array(values.std()), margin, confidence))


def _needed(mean: np.ndarray, spread: np.ndarray, margin: float, confidence: float) -> np.ndarray:
    """Smallest n with (t + z) s / √n ≤ what is left to decide; t's quantile depends on n itself."""
    size = np.abs(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = spread / size
        within = np.where(size < margin, spread / (margin - size), np.inf)
        texts = np.full(size.shape, math.inf)
        for _ in range(8):  # from the normal quantile upwards
            t = stdtrit(np.maximum(texts - 1, 1), 0.5 + confidence / 2)
            ends = np.minimum((t + ndtri(_POWER)) * apart, (t + ndtri(0.5 + _POWER / 2)) * within)
            texts = np.maximum(np.ceil(ends**2), FEWEST)
    return np.where(np.isnan(spread), np.nan, texts)


def pilots(found: pd.DataFrame, sizes: Sequence[int], *, draws: int = 10_000) -> pd.DataFrame:
    """Return what `lead` says of a few texts, drawn again and again from many.

    Who leads on all texts of `found` counts as the truth. For `false` the truth is a tie: each
    method's mean is moved to the same value, and texts are drawn with replacement, so that the
    sample is one of many.

    Returns:
        A row a size: `decided`, the share of draws whose outcome is not "cannot tell", with its
        interval; `wrong`, the share that call a method clearly best which is not best on all texts;
        `false`, the share that call one clearly best where all tie; `needed`, the median number of
        texts that undecided draws ask for.
    """
    found = found.dropna()
    values, truth = found.to_numpy(float), int(found.mean().argmax())
    generator, rows = np.random.default_rng(0), {}
    for size in sizes:
        order = generator.random((draws, len(values))).argsort(axis=1)[:, :size]
        race = _race(values[order])
        tied = _race(
            (values - values.mean(axis=0))[generator.integers(0, len(values), order.shape)]
        )
        decided, asked = ~race.undecided.any(axis=1), np.where(race.undecided, race.texts, -np.inf)
        rows[size] = {
            **stats.estimate(decided)._asdict(),
            "wrong": (_clear(race) & (race.best != truth)).mean(),
            "false": _clear(tied).mean(),
            "needed": np.median(asked.max(axis=1)[~decided]) if not decided.all() else np.nan,
        }
    return pd.DataFrame.from_dict(rows, orient="index").drop(columns=["used", "dropped"])


def _clear(race: _Race) -> np.ndarray:
    return ~race.undecided.any(axis=1) & (race.beaten.sum(axis=1) == race.beaten.shape[1] - 1)
