"""Which of several methods leads, text by text, and how many texts would decide it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import norm

from lrputils import stats
from lrputils.report.tables import CANNOT_TELL

# Methods are alike if their means differ by no more; fewer texts than this decide nothing.
MARGIN, FEWEST = 0.02, 10
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


def lead(found: pd.DataFrame, **options: Any) -> Lead:
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
    level = {"confidence": 1 - 0.05 / max(found.shape[1] - 1, 1)}
    gaps = found.drop(columns=best).rsub(found[best], axis=0)
    ends = {name: stats.estimate(gap, **level, **options) for name, gap in gaps.items()}
    texts = {name: needed(gap, MARGIN, **level) for name, gap in gaps.items()}
    beaten = [name for name, gap in ends.items() if gap.low > 0]
    close = [name for name, gap in ends.items() if gap.low >= -MARGIN and gap.high <= MARGIN]
    few = len(found) < FEWEST
    undecided = [name for name in ends if few or name not in (*beaten, *close)]
    outcome = CANNOT_TELL if undecided else CLEAR if len(beaten) == len(ends) else ALIKE
    rivals = undecided or [name for name in ends if name not in beaten] or list(ends)
    rival = max(rivals, key=lambda name: (texts[name], -ends[name].value), default="")
    gap, wanted = ends.get(rival, stats.estimate([np.nan])), texts.get(rival, math.nan)
    return Lead(best, stats.estimate(found[best], **options), outcome, rival, gap, wanted)


def needed(differences: pd.Series, margin: float = 0.0, *, confidence: float = 0.95) -> float:
    """Return how many texts decide a paired comparison, if these differences are typical.

    Decided means that the interval, mean ± z·s/√n, leaves 0 on one side, or lies within ± `margin`;
    the answer is the smaller number at which one of the two happens with a probability of 80%. It
    is infinite if the mean is 0 and there is no margin, NaN below two texts.
    """
    values = differences.dropna()
    if len(values) < 2:
        return math.nan
    mean, spread = abs(values.mean()), values.std()
    ends, room = norm.ppf(0.5 + confidence / 2), margin - mean
    apart = (ends + norm.ppf(_POWER)) * spread / mean if mean else math.inf
    within = (ends + norm.ppf(0.5 + _POWER / 2)) * spread / room if room > 0 else math.inf
    least = min(apart, within) ** 2
    return max(FEWEST, math.ceil(least)) if least < math.inf else math.inf


def pilots(
    found: pd.DataFrame, sizes: Sequence[int], *, draws: int = 100, **options: Any
) -> pd.DataFrame:
    """Return what `lead` says of a few texts, drawn again and again from many without replacement.

    Who leads on all texts of `found` counts as the truth.

    Returns:
        A row a size: `decided`, the share of draws whose outcome is not "cannot tell", with its
        interval; `wrong`, the share that call a method clearly best which is not best on all texts;
        `needed`, the median number of texts that undecided draws ask for.
    """
    truth, generator, rows = lead(found, **options).best, np.random.default_rng(0), {}
    for size in sizes:
        drawn = [generator.choice(len(found), size, replace=False) for _ in range(draws)]
        told = [lead(found.iloc[texts], **options) for texts in drawn]
        decided = stats.estimate([float(answer.outcome != CANNOT_TELL) for answer in told])
        rows[size] = {
            **decided._asdict(),
            "wrong": np.mean([a.outcome == CLEAR and a.best != truth for a in told]),
            "needed": np.median([a.texts for a in told if a.outcome == CANNOT_TELL] or [np.nan]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").drop(columns=["used", "dropped"])
