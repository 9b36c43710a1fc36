"""How leave-one-out and the cheap methods change with the length of a text: seconds and agreement.

Leave-one-out reads a text of n tokens n times, so its time grows with n² where that of a backward
pass grows with n. `at_lengths` cuts the same texts to several lengths, so that nothing else
differs; `trend` takes texts of different lengths as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lrputils import stats
from lrputils.attribution import METHODS, attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.study.cost.clock import timed
from lrputils.study.cost.forecasts import text_lengths
from lrputils.study.evaluation import REFERENCE


def at_lengths(
    classifier: Classifier,
    texts: Sequence[str],
    lengths: Sequence[int],
    methods: Sequence[str] = ("attnlrp", "cp-lrp"),
) -> pd.DataFrame:
    """Cut the same texts to several lengths: seconds of LOO and methods, and each method's r.

    Only texts that reach the largest length (in tokens, special ones included) are used; each is
    timed alone, after one uncounted run. A row a text, length and method (LOO among them):
    `position`, `tokens`, `method`, `seconds`, `r` (Pearson with LOO of the same cut text, all
    tokens).

    Raises:
        ValueError: no text reaches the largest length, or an unknown method.
    """
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise ValueError(f"unknown method(s) {unknown}; choose from {list(METHODS)}")
    lengths, names = sorted(set(lengths)), list(dict.fromkeys((REFERENCE, *methods)))
    reached, _ = text_lengths(classifier, texts, max_length=lengths[-1], truncate=True)
    chosen = np.flatnonzero(reached >= lengths[-1]).tolist()
    if not chosen:
        raise ValueError(f"no text has {lengths[-1]} tokens; the longest has {reached.max()}")
    rows = []
    for position in chosen:
        for length in lengths:
            inputs = classifier.encode([texts[position]], length, truncate=True)
            if not rows:
                _timed_maps(classifier, inputs, names)  # the first run is slower
            head = {"position": position, "tokens": length}
            rows += [{**head, **row} for row in _timed_maps(classifier, inputs, names)]
    return pd.DataFrame(rows)


def _timed_maps(
    classifier: Classifier, inputs: Inputs, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Seconds and r of each method; the first is the reference."""
    works = {name: partial(attribute, classifier.model, inputs, name) for name in names}
    found = {name: timed(classifier.device, work) for name, work in works.items()}
    r = {name: float(stats.pearson(found[name][1], found[names[0]][1])[0]) for name in names}
    return [{"method": name, "seconds": found[name][0], "r": r[name]} for name in names]


def growth(costs: pd.DataFrame) -> pd.Series:
    """Return each method's p of seconds ∝ tokensᵖ in `at_lengths`, by least squares in logs."""
    logs = costs.assign(x=np.log(costs.tokens), y=np.log(costs.seconds))
    methods = logs.groupby("method", sort=False)
    return pd.Series({name: np.polyfit(rows.x, rows.y, 1)[0] for name, rows in methods})


def agreement(costs: pd.DataFrame) -> pd.DataFrame:
    """Return each method's mean r at each length of `at_lengths`, and how it changes over them.

    A row a method (without LOO), a column a length; `change`, the paired difference longest −
    shortest, with its interval's ends `low` and `high` (NaN for a single text).
    """
    means, changes = {}, {}
    for name, group in costs[costs.method != REFERENCE].groupby("method", sort=False):
        wide = group.pivot(index="position", columns="tokens", values="r")
        means[name] = wide.mean().add_suffix(" tokens")
        changes[name] = wide.iloc[:, -1] - wide.iloc[:, 0]
    changes = pd.DataFrame(changes)
    ends = stats.estimates(changes, method="t")[["low", "high"]]
    return pd.DataFrame(means).T.assign(change=changes.mean()).join(ends)


def trend(per_text: pd.DataFrame, tokens: ArrayLike) -> pd.DataFrame:
    """Return how each method's r, (texts, methods), changes with the texts' lengths in tokens.

    A row a method: `rho`, Spearman's rank correlation of r and length over texts, with the ends
    `low` and `high` of its 95% bootstrap interval, and `texts`. NaN where fewer than four texts
    have an r, or all have one length.
    """
    tokens, rows = np.asarray(tokens, dtype=float), {}
    for name in per_text:
        kept = per_text[name].notna().to_numpy()
        r, n = per_text[name].to_numpy(float)[kept], tokens[kept]
        rows[name] = {"rho": np.nan, "low": np.nan, "high": np.nan, "texts": len(r)}
        if len(r) < 4 or np.ptp(n) == 0 or np.ptp(r) == 0:
            continue
        rho, low, high, *_ = stats.estimate(r, n, statistic=_rho)
        rows[name] |= {"rho": rho, "low": low, "high": high}
    return pd.DataFrame.from_dict(rows, orient="index")


def _rho(r: np.ndarray, tokens: np.ndarray, axis: int) -> np.ndarray:
    """Spearman's rho along the last axis; NaN in a resample of equal values, which is left out."""
    rho = stats.spearman(np.atleast_2d(r), np.atleast_2d(tokens))
    return rho if r.ndim > 1 else rho[0]


def loo_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `tokens` and `mean |LOO|` (in logits, without special tokens) by text.

    `rows` are those of `lrputils.study.conventions.maps`; LOO is by the mask.
    """
    loo = rows[(rows.method == REFERENCE) & (rows.removal == "attention-mask")].set_index("id")
    sizes = [np.abs(s[c]).mean() for s, c in zip(loo.scores, loo.content, strict=True)]
    return pd.DataFrame({"tokens": loo.scores.map(len), "mean |LOO|": sizes})
