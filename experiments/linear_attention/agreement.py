"""How the maps of networks agree, and the interval of a mean over seeds and images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import stdtrit
from torch import Tensor

from experiments.linear_attention.maps import (
    BASELINES,
    REMOVALS,
    attnlrp,
    explain,
    integrated_gradients,
    leave_one_out,
)
from experiments.linear_attention.network import LEFT, RIGHT, TERNARY, LinearAttention, Setting
from lrputils.stats import Estimate, pearson, sum_to_one

GRAPHS = f"{LEFT} vs {RIGHT}"
PAIRS = {
    GRAPHS: (LEFT, RIGHT),
    f"{LEFT} vs LOO": (LEFT, "LOO"),
    f"{RIGHT} vs LOO": (RIGHT, "LOO"),
    f"{TERNARY} vs LOO": (TERNARY, "LOO"),
    "IG vs LOO": ("IG", "LOO"),
}


def correlations(
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
    # A map that sums to zero cannot be normalised; as a constant it has no correlation either.
    scores = {name: np.nan_to_num(sum_to_one(own)) for name, own in maps.items()}
    negative = {name: (own.sum(1) < 0).numpy() for name, own in maps.items()}
    parts = [
        {
            "id": np.arange(len(scores[first])),
            "pair": pair,
            "r": pearson(maps[first], maps[second]),
            "r_normalised": pearson(scores[first], scores[second]),
            "flipped": negative[first] ^ negative[second],
            "pooled": pearson(scores[first].ravel(), scores[second].ravel())[0],
        }
        for pair, (first, second) in pairs.items()
    ]
    return pd.concat(map(pd.DataFrame, parts), ignore_index=True)


def crossed_estimate(values: np.ndarray) -> Estimate:
    """Return the mean of correlations (seeds, images) and its 95% interval over both.

    All seeds share the images and all images the seeds, so the mean varies with either. Its
    variance is taken as the sum of the two, those of the seeds' and of the images' means, which
    counts what is left in a single cell twice; the interval is Student's, with Satterthwaite's
    degrees of freedom, and stays within ±1. With one seed it is over images only. NaN is left out;
    ValueError where nothing is left.
    """
    known = np.ma.masked_invalid(values)
    if not known.count():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    means = [known.mean(axis).compressed() for axis in (1, 0)]
    variance = np.array([some.var(ddof=1) / len(some) for some in means if len(some) > 1])
    free = np.array([len(some) - 1 for some in means if len(some) > 1])
    reach = 0.0
    if variance.any():
        freedom = variance.sum() ** 2 / (variance**2 / free).sum()
        reach = stdtrit(freedom, 0.975) * variance.sum() ** 0.5
    low, high = np.clip([known.mean() - reach, known.mean() + reach], -1, 1)
    used = int(known.count())
    return Estimate(float(known.mean()), float(low), float(high), used, known.size - used)


ANY = "any"  # the removal of a pair without LOO


def distinct(setting: Setting, among: tuple[str, ...] = REMOVALS) -> list[str]:
    """Return the removals (or baselines) that differ: black is zero where grey levels stay."""
    return [how for how in among if how != "black" or setting.scaling != "unit"]


def under_every_removal(network: LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return r of every pair of one network's maps under every removal, a row per image and pair.

    `images` are grey levels from 0 to 1, (images, tokens).

    Returns:
        The columns of `correlations`; `setting`; `removal`, "any" for the two graphs with each
        other; `target`, the predicted class. Beside the pairs of `PAIRS` there are IG from the
        other baselines, and for removal "delete" both graphs read at the rows of Q, K and V ("… @
        token"). Black is left out, as removal and as baseline, where it is 0 (`distinct`).
    """
    maps = explain(network, images)
    for start in distinct(network.setting, BASELINES[1:]):
        maps[f"IG from {start}"] = integrated_gradients(network, images, baseline=start)
    del maps["LOO"]
    parts = [correlations(maps, {GRAPHS: PAIRS[GRAPHS]}).assign(removal=ANY)]
    for removal in distinct(network.setting):
        if removal == "delete":
            for graph in (LEFT, RIGHT):
                maps[f"{graph} @ token"] = attnlrp(network, images, graph, readout="token")
        loo = {"LOO": leave_one_out(network, images, removal=removal)}
        pairs = {f"{name} vs LOO": (name, "LOO") for name in maps}
        parts.append(correlations(maps | loo, pairs).assign(removal=removal))
    rows = pd.concat(parts, ignore_index=True)
    target = network(images).argmax(1).numpy()
    return rows.assign(setting=network.setting.name, target=target[rows["id"]])
