"""Methods against several yardsticks: leave-one-out, Shapley values, and what pairs add to LOO.

`measured` keeps each text's maps over the tokens that are not special, which stay in place under
every removal here. The rest compares them: how far each method agrees with each yardstick, what the
sampling of Shapley values costs, and whether a method departs from LOO where tokens are redundant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal import shapley
from lrputils.removal.leave_two_out import leave_two_out
from lrputils.removal.shapley import shapley_values
from lrputils.study.by_text import in_order, predicted

Array = np.ndarray
METHODS = ("attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "rollout")
YARDSTICKS = LOO, PAIRS, SHAPLEY = "loo", "pairs", "shapley"
ERROR, FIRST, SECOND = "shapley-error", "shapley-first", "shapley-second"
EXACT = "shapley-exact"
INTERACTIONS = "interactions"
# A partial correlation and quarters of a text need some tokens.
_FEWEST = 5
# A departure of this size, of a map of variance one, is rounding.
_NOTHING = 1e-20


def measured(
    classifier: Classifier,
    texts: Texts,
    *,
    permutations: int = 16,
    exact: bool = False,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    `permutations` are the orders drawn for a text's Shapley values, see `shapley_values`; `exact`
    asks for the exact ones too, of every text that is short enough for all of its orders.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`, `method` and `scores`, a float32 array over the text's tokens that are not special.
        Methods are `METHODS`, "loo", "shapley", its standard errors and its estimates from either
        half of the orders, "shapley-exact"; and "interactions", I_ij of all pairs i < j, row by
        row.
    """
    rows = []
    for inputs, target, texts_rows in predicted(classifier, texts, batch_size, max_length):
        maps = _maps(classifier, inputs, target, permutations)
        enumerated = _enumerated(classifier, inputs, target) if exact else {}
        for number, row in enumerate(texts_rows):
            content = np.flatnonzero(row["content"])
            scores = {name: values[number][content] for name, values in maps.items()}
            if number in enumerated:
                scores[EXACT] = enumerated[number][content]
            both = scores[INTERACTIONS][:, content]
            scores[INTERACTIONS] = both[np.triu_indices(len(both), 1)]
            rows += [{**row, "method": m, "scores": s} for m, s in scores.items()]
    return in_order(rows, "content")


def _maps(
    classifier: Classifier, inputs: Inputs, target: Any, permutations: int
) -> dict[str, Array]:
    model = classifier.model
    how = {"target": target, "progress": False}
    sampled = shapley_values(model, inputs, permutations=permutations, **how)
    halves = sampled.draws.tensor_split(2)
    pairs = leave_two_out(model, inputs, **how)
    found = {
        LOO: pairs.loo,
        SHAPLEY: sampled.scores,
        ERROR: sampled.errors,
        FIRST: halves[0].mean(0),
        SECOND: halves[1].mean(0),
        INTERACTIONS: pairs.interactions,
    }
    found |= {method: attribute(model, inputs, method, target=target) for method in METHODS}
    return {name: values.float().cpu().numpy() for name, values in found.items()}


def _enumerated(classifier: Classifier, inputs: Inputs, target: Tensor) -> dict[int, Array]:
    """Exact Shapley values by the number of the text, for those that are short enough."""
    short = (inputs.content_mask.sum(1) <= shapley.LONGEST).nonzero().flatten()
    if not len(short):
        return {}
    how = {"target": target[short.to(target.device)], "progress": False}
    found = shapley_values(classifier.model, inputs.rows(short), permutations=shapley.ALL, **how)
    return dict(zip(short.tolist(), found.scores.float().cpu().numpy(), strict=True))


def by_text(rows: pd.DataFrame) -> Iterator[tuple[Any, dict[str, Array]]]:
    """Yield each text's id and maps in float64, and with them `PAIRS`: LOO_i + ½ Σ_j I_ij."""
    for text, part in rows.groupby("id", sort=False):
        maps = {m: np.asarray(s, float) for m, s in zip(part.method, part.scores, strict=True)}
        maps[PAIRS] = maps[LOO] + _half_sums(maps)
        yield text, maps


def _half_sums(maps: Mapping[str, Array]) -> Array:
    """½ Σ_j I_ij of each token."""
    both = np.zeros((len(maps[LOO]),) * 2)
    both[np.triu_indices(len(both), 1)] = maps[INTERACTIONS]
    return (both + both.T).sum(1) / 2


def agreement(rows: pd.DataFrame) -> pd.DataFrame:
    """Return r of each method, and of each yardstick, with each yardstick.

    From rows of `measured`: (texts, (yardstick, method)); NaN where a map is constant.
    """
    names = [*METHODS, *YARDSTICKS]
    found = {}
    for text, maps in by_text(rows):
        every = np.stack([maps[name] for name in names])
        found[text] = {
            (yardstick, name): r
            for yardstick in YARDSTICKS
            for name, r in zip(
                names,
                stats.pearson(every, np.broadcast_to(maps[yardstick], every.shape)),
                strict=True,
            )
        }
    return pd.DataFrame.from_dict(found, orient="index")


def reliability(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how much of each text's sampled Shapley map is no noise.

    A noisy yardstick lowers every correlation with it, by the root of its reliability (Spearman,
    1904).

    Returns:
        by text: `halves`, r of the estimates from either half of the orders; `split half`, what
        follows from it for the whole sample (Spearman-Brown); `reliability`, one less the mean
        squared standard error over the variance of the scores.
    """
    found = {}
    for text, maps in by_text(rows):
        with np.errstate(divide="ignore", invalid="ignore"):
            half = float(stats.pearson(maps[FIRST], maps[SECOND])[0])
            noise = (maps[ERROR] ** 2).mean() / maps[SHAPLEY].var(
                ddof=1 if len(maps[LOO]) > 1 else 0
            )
        found[text] = {
            "halves": half,
            "split half": 2 * half / (1 + half),
            "reliability": 1 - noise,
        }
    return pd.DataFrame.from_dict(found, orient="index")


def disagreement(rows: pd.DataFrame) -> pd.DataFrame:
    """Return where each method departs from LOO: on redundant tokens, or on others?

    A method's departure e is what is left of its map, scaled to variance one, after regression on
    LOO within the text; Σ e² / n = 1 − r². Tokens are ordered by ½ Σ_j I_ij: the last quarter is
    the most redundant, the first one the most dependent on others.

    Returns:
        by (text, method), for texts of at least five tokens: `share`, 1 − r²; `redundant` and
        `dependent`, the shares of Σ e² on the two quarters; `expected`, a quarter's share of the
        tokens; `partial`, the correlation of the method with ½ Σ_j I_ij, LOO held fixed.
    """
    found = {}
    for text, maps in by_text(rows):
        half, n = _half_sums(maps), len(maps[LOO])
        if n < _FEWEST or not (maps[LOO].std() and half.std()):
            continue
        order, quarter = np.argsort(half, kind="stable"), round(n / 4)
        other = _left(half, maps[LOO])
        for method in (*METHODS, SHAPLEY):
            if not maps[method].std():
                continue
            left = _left(maps[method], maps[LOO])
            total = (left**2).sum()
            squared = left**2 / (total if total > _NOTHING else np.nan)
            found[text, method] = {
                "share": (left**2).mean(),
                "redundant": squared[order[-quarter:]].sum(),
                "dependent": squared[order[:quarter]].sum(),
                "expected": quarter / n,
                "partial": float(stats.pearson(left, other)[0]),
            }
    return pd.DataFrame.from_dict(found, orient="index").rename_axis(["text", "method"])


def _left(values: Array, given: Array) -> Array:
    """What regression on `given` leaves of values scaled to variance one."""
    z, x = ((v - v.mean()) / v.std() for v in (values, given))
    return z - (z * x).mean() * x
