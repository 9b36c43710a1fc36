"""How leave-one-out and the cheap methods change with the length of a text: seconds and agreement.

Leave-one-out reads a text of n tokens n times, so its price grows with n² where that of a backward
pass grows with n. Two ways to ask what length does: the same texts cut to several lengths, so that
nothing else differs; and texts of different lengths as they come. What a whole run costs is in
`lrputils.cost`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from lrputils import stats
from lrputils.attribution import METHODS, attribute
from lrputils.cost import text_lengths, timed
from lrputils.evaluation import REFERENCE
from lrputils.inputs import Inputs
from lrputils.models import Classifier

# Below so many texts a rank correlation has no interval worth drawing.
_FEWEST = 4


def at_lengths(
    classifier: Classifier,
    texts: Sequence[str],
    lengths: Sequence[int],
    methods: Sequence[str] = ("attnlrp", "cp-lrp"),
) -> pd.DataFrame:
    """Cut the same texts to several lengths: seconds of LOO and methods, and each method's r.

    Only texts that reach the largest length take part, so that every length sees the same ones.

    Args:
        classifier: `load_classifier`'s answer.
        texts: the texts; one at a time is timed, after one uncounted run.
        lengths: in tokens, special ones included.
        methods: names from `METHODS`, at their default options.

    Returns:
        A row a text, length and method (LOO among them): `position`, `tokens`, `method`,
        `seconds`, `r` (Pearson with LOO of the same cut text, all tokens).

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
            warm = names if not rows else []
            for name in warm:
                attribute(classifier.model, inputs, name)
            rows += [
                {"position": position, "tokens": length, **row}
                for row in _timed_maps(classifier, inputs, names)
            ]
    return pd.DataFrame(rows)


def _timed_maps(
    classifier: Classifier, inputs: Inputs, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    loo = None
    for name in names:
        seconds, scores = timed(
            classifier.device, lambda name=name: attribute(classifier.model, inputs, name)
        )
        loo = scores if loo is None else loo
        yield {"method": name, "seconds": seconds, "r": float(stats.pearson(scores, loo)[0])}


def growth(costs: pd.DataFrame) -> pd.Series:
    """Return, for each method, the exponent p of seconds ∝ tokensᵖ, by least squares in logs.

    Args:
        costs: columns `tokens`, `method`, `seconds`, as `at_lengths` returns them.
    """
    logs = costs.assign(x=np.log(costs.tokens), y=np.log(costs.seconds))
    return pd.Series(
        {
            name: np.polyfit(rows.x, rows.y, 1)[0]
            for name, rows in logs.groupby("method", sort=False)
        }
    )


def agreement(costs: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return each method's mean r at each length, and how it changes from shortest to longest.

    Args:
        costs: as `at_lengths` returns them.
        options: those of `lrputils.stats.bootstrap_interval`.

    Returns:
        A row a method (without LOO); a column a length with the mean over texts; `change`, the
        paired difference longest − shortest, with its interval's ends `low` and `high` (NaN for a
        single text).
    """
    rows = {}
    for name, group in costs[costs.method != REFERENCE].groupby("method", sort=False):
        wide = group.pivot(index="position", columns="tokens", values="r")
        change = wide.iloc[:, -1] - wide.iloc[:, 0]
        several = change.notna().sum() > 1
        low, high = stats.bootstrap_interval(change, **options) if several else (np.nan, np.nan)
        rows[name] = {
            **{f"{length} tokens": column.mean() for length, column in wide.items()},
            "change": change.mean(),
            "low": low,
            "high": high,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def trend(
    per_text: pd.DataFrame, tokens: ArrayLike, *, resamples: int = 2_000, seed: int = 0
) -> pd.DataFrame:
    """Return how each method's r goes with the length of the text, over texts.

    Args:
        per_text: (texts, methods), correlations; NaN is left out.
        tokens: (texts,), their lengths.
        resamples: number of bootstrap samples of texts.
        seed: of the random draws.

    Returns:
        A row a method: `rho`, Spearman's rank correlation of r and length over texts, with the ends
        `low` and `high` of its 95% bootstrap interval, and `texts`. NaN where fewer than four
        texts have an r, or all have one length.
    """
    tokens = np.asarray(tokens, dtype=float)
    return pd.DataFrame.from_dict(
        {
            name: _trend(per_text[name].to_numpy(float), tokens, resamples, seed)
            for name in per_text
        },
        orient="index",
    )


def _trend(r: np.ndarray, tokens: np.ndarray, resamples: int, seed: int) -> dict[str, float]:
    kept = ~np.isnan(r)
    r, tokens = r[kept], tokens[kept]
    found = {"rho": np.nan, "low": np.nan, "high": np.nan, "texts": len(r)}
    if len(r) < _FEWEST or np.ptp(tokens) == 0 or np.ptp(r) == 0:
        return found
    draws = np.random.default_rng(seed).integers(0, len(r), size=(resamples, len(r)))
    low, high = np.nanquantile(stats.spearman(r[draws], tokens[draws]), [0.025, 0.975])
    return found | {"rho": float(stats.spearman(r, tokens)[0]), "low": low, "high": high}
