"""Correlation of the two graphs' maps with each other and with LOO, raw and normalised.

`agreement` gives rows (a network, an image, a pair of maps), `crossed_estimate` a mean of them with
its interval over seeds and images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit
from torch import Tensor

from lrputils.linear_attention.attribution import explain
from lrputils.linear_attention.model import LEFT, RIGHT, TERNARY, LinearAttention
from lrputils.stats import Estimate, pearson, sum_to_one

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


def crossed_estimate(values: np.ndarray, *, bound: float = 1.0) -> Estimate:
    """Return the mean of values (seeds, images) and its 95% interval over both.

    All seeds share the images and all images the seeds, so the mean varies with either. Its
    variance is taken as the sum of the two, those of the seeds' and of the images' means, which
    counts what is left in a single cell twice; the interval is Student's, with Satterthwaite's
    degrees of freedom, and stays within ± `bound`, 1 for correlations. With one seed it is over
    images only.
    """
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    used = int(known.sum())
    mean = np.where(known, values, 0.0).sum() / used
    means = [np.ma.masked_invalid(values).mean(axis).compressed() for axis in (1, 0)]
    means = [some for some in means if len(some) > 1]
    variance = np.array([some.var(ddof=1) / len(some) for some in means])
    reach = 0.0
    if variance.sum() > 0:
        free = np.array([len(some) - 1 for some in means])
        freedom = variance.sum() ** 2 / (variance**2 / free).sum()
        reach = stdtrit(freedom, 0.975) * variance.sum() ** 0.5
    low, high = np.clip([mean - reach, mean + reach], -bound, bound)
    return Estimate(float(mean), float(low), float(high), used, known.size - used)
