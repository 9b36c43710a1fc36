"""Correlation of the two graphs' maps with each other and with LOO, raw and normalised.

`agreement` gives rows (a network, an image, a pair of maps), `estimates` their means with intervals
over seeds and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit
from torch import Tensor

from lrputils.linear_attention.attribution import explain
from lrputils.linear_attention.model import LEFT, RIGHT, TERNARY, LinearAttention
from lrputils.stats import Estimate, pearson, sum_to_one

_ENDS = (0.025, 0.975)
GRAPHS = f"{LEFT} vs {RIGHT}"
PAIRS = {
    GRAPHS: (LEFT, RIGHT),
    f"{LEFT} vs LOO": (LEFT, "LOO"),
    f"{RIGHT} vs LOO": (RIGHT, "LOO"),
    f"{TERNARY} vs LOO": (TERNARY, "LOO"),
    "IG vs LOO": ("IG", "LOO"),
}


def agreement(trained: Sequence[LinearAttention], images: Tensor, **options) -> pd.DataFrame:
    """Return r of each pair of maps: the columns of `compared`, and `seed`.

    `trained` are networks of several training seeds, `images` grey levels from 0 to 1, (images,
    tokens); `options` are those of `explain`: removal, baseline, readout.
    """
    parts = [
        compared(explain(network, images, **options)).assign(seed=seed)
        for seed, network in enumerate(trained)
    ]
    return pd.concat(parts, ignore_index=True)


def compared(
    maps: Mapping[str, Tensor], pairs: Mapping[str, tuple[str, str]] = PAIRS
) -> pd.DataFrame:
    """Return r of each pair of one network's maps, each (images, tokens), a row per image and pair.

    `pairs`: the name of a pair → its two maps.

    Returns:
        Columns `id`, the image's number; `pair`; `r`, Pearson's r of the maps as they are;
        `r_normalised`, r after dividing each map by its sum; `flipped`, whether exactly one of the
        two sums was negative; `pooled`, r over the normalised maps of all images together, the same
        in all rows of a pair. NaN where a map is constant or sums to zero.
    """
    unit = {name: sum_to_one(scores) for name, scores in maps.items()}
    # A map that sums to zero cannot be normalised; as a constant it has no correlation either.
    scores = {name: np.nan_to_num(normalized.scores) for name, normalized in unit.items()}
    parts = [
        {
            "id": np.arange(len(scores[first])),
            "pair": pair,
            "r": pearson(maps[first], maps[second]),
            "r_normalised": pearson(scores[first], scores[second]),
            "flipped": unit[first].flipped ^ unit[second].flipped,
            "pooled": pearson(scores[first].ravel(), scores[second].ravel())[0],
        }
        for pair, (first, second) in pairs.items()
    ]
    return pd.concat(map(pd.DataFrame, parts), ignore_index=True)


def negative_sums(trained: Sequence[LinearAttention], images: Tensor, **options) -> pd.Series:
    """Return, for each kind of map, the share with a negative sum, which sum-to-one flips.

    Arguments as in `agreement`.
    """
    shares = [
        {name: sum_to_one(scores).flipped_share for name, scores in maps.items()}
        for maps in (explain(network, images, **options) for network in trained)
    ]
    return pd.DataFrame(shares).mean().rename("negative sums")


def estimates(rows: pd.DataFrame, column: str = "r") -> dict[str, Estimate]:
    """Return each pair's `crossed_estimate` of `column` ("r" or "r_normalised") of `agreement`."""
    return {
        pair: crossed_estimate(
            part.pivot(index="seed", columns="id", values=column).to_numpy(float)
        )
        for pair, part in rows.groupby("pair", sort=False, observed=True)
    }


def crossed_estimate(
    values: np.ndarray, *, resamples: int = 5_000, seed: int = 0, bound: float = 1.0
) -> Estimate:
    """Return the mean of values (seeds, images) and its 95% interval over both.

    Each bootstrap sample draws training seeds and images independently and takes the mean of the
    cells where they cross: all seeds share the images and all images the seeds (scipy's bootstrap
    draws along one axis only). The ends are then moved away from the mean by `_widening`, since
    seeds are few, but not past ± `bound`, 1 for correlations. With one seed the interval is over
    images only.
    """
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    filled = np.where(known, values, 0.0)
    seeds, images = _draws(values.shape, resamples, seed)
    total = ((seeds @ filled) * images).sum(1)
    count = np.full(resamples, float(known.size))
    if not known.all():
        count = ((seeds @ known.astype(float)) * images).sum(1)
    ends = np.quantile(total[count > 0] / count[count > 0], _ENDS)
    used = int(known.sum())
    mean = filled.sum() / used
    low, high = np.clip(mean + _widening(values) * (ends - mean), -bound, bound)
    return Estimate(float(mean), float(low), float(high), used, known.size - used)


def _widening(values: np.ndarray) -> float:
    """Return the factor by which a percentile bootstrap of few seeds is too narrow; at least 1.

    Drawing n of n makes variances smaller by (n − 1)/n, and where n is small the quantiles should
    be Student's. Seeds and images count by the variance that they bring to the mean (degrees of
    freedom after Satterthwaite).
    """
    means = [np.ma.masked_invalid(values).mean(axis).compressed() for axis in (1, 0)]
    drawn = np.array([some.var() / len(some) for some in means if len(some) > 1])
    if drawn.sum() <= 0:
        return 1.0
    free = np.array([len(some) - 1 for some in means if len(some) > 1])
    unbiased = drawn * (free + 1) / free
    freedom = unbiased.sum() ** 2 / (unbiased**2 / free).sum()
    ratio = stdtrit(freedom, _ENDS[1]) / ndtri(_ENDS[1])
    return float(ratio * (unbiased.sum() / drawn.sum()) ** 0.5)


@lru_cache(maxsize=4)
def _draws(shape: tuple[int, int], resamples: int, seed: int) -> list[np.ndarray]:
    """Return how often each resample draws each seed and each image, (resamples, size) both."""
    generator = np.random.default_rng(seed)
    return [
        generator.multinomial(size, np.full(size, 1 / size), resamples).astype(float)
        for size in shape
    ]
