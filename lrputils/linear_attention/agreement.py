"""How far the maps of the two graphs agree with each other and with LOO, raw and normalised.

Rows first (a network, an image, a pair of maps), means with intervals after. It draws nothing and
knows no published number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils.data.images import ImageData
from lrputils.linear_attention.attribution import explain
from lrputils.linear_attention.model import LEFT, RIGHT, TERNARY, LinearAttention, Setting
from lrputils.linear_attention.training import networks
from lrputils.stats import Estimate, pearson, sum_to_one

PAIRS = {
    f"{LEFT} vs {RIGHT}": (LEFT, RIGHT),
    f"{LEFT} vs LOO": (LEFT, "LOO"),
    f"{RIGHT} vs LOO": (RIGHT, "LOO"),
    f"{TERNARY} vs LOO": (TERNARY, "LOO"),
    "IG vs LOO": ("IG", "LOO"),
}


def agreement(trained: Sequence[LinearAttention], images: Tensor, **options) -> pd.DataFrame:
    """Return r of each pair of maps, a row per network, image and pair.

    Args:
        trained: networks of several training seeds.
        images: grey levels from 0 to 1, (images, tokens).
        options: those of `explain`: removal, baseline, readout.

    Returns:
        Columns `seed`, `image`, `pair`; `raw`, Pearson's r of the maps as they are; `normalized`,
        r after dividing each map by its sum; `flipped`, whether exactly one of the two sums was
        negative; `pooled`, r over the normalised maps of all images of a seed together, the same
        in all its rows. NaN where a map is constant or sums to zero.
    """
    parts = [
        _rows(explain(network, images, **options), seed) for seed, network in enumerate(trained)
    ]
    return pd.concat(parts, ignore_index=True)


def _rows(maps: Mapping[str, Tensor], seed: int) -> pd.DataFrame:
    unit = {name: sum_to_one(scores) for name, scores in maps.items()}
    # A map that sums to zero cannot be normalised; as a constant it has no correlation either.
    scores = {name: np.nan_to_num(normalized.scores) for name, normalized in unit.items()}
    parts = []
    for pair, (first, second) in PAIRS.items():
        row = {
            "seed": seed,
            "image": np.arange(len(scores[first])),
            "pair": pair,
            "raw": pearson(maps[first], maps[second]),
            "normalized": pearson(scores[first], scores[second]),
            "flipped": unit[first].flipped ^ unit[second].flipped,
            "pooled": pearson(scores[first].ravel(), scores[second].ravel())[0],
        }
        parts.append(pd.DataFrame(row))
    return pd.concat(parts)


def negative_sums(trained: Sequence[LinearAttention], images: Tensor, **options) -> pd.Series:
    """Return, for each kind of map, the share with a negative sum: those that sum-to-one flips.

    Arguments as in `agreement`.
    """
    shares = [
        {name: sum_to_one(scores).flipped_share for name, scores in maps.items()}
        for maps in (explain(network, images, **options) for network in trained)
    ]
    return pd.DataFrame(shares).mean().rename("negative sums")


def estimates(rows: pd.DataFrame, column: str = "raw", **options) -> dict[str, Estimate]:
    """Return the mean over seeds and images of `column` for each pair, with its interval.

    Args:
        rows: from `agreement`.
        column: "raw" or "normalized".
        options: those of `crossed_estimate`.
    """
    return {
        pair: crossed_estimate(
            part.pivot(index="seed", columns="image", values=column).to_numpy(), **options
        )
        for pair, part in rows.groupby("pair", sort=False)
    }


def crossed_estimate(
    values: np.ndarray, *, confidence: float = 0.95, resamples: int = 5_000, seed: int = 0
) -> Estimate:
    """Return the mean of (seeds, images) values and its interval over both.

    Each bootstrap sample draws training seeds and images independently and takes the mean of the
    cells where they cross, so that neither the images, which all seeds share, nor the seeds, which
    all images share, pass for independent repetitions. One seed: over images only.
    """
    generator = np.random.default_rng(seed)
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    filled = np.where(known, values, 0.0)
    draws = [
        generator.multinomial(size, np.full(size, 1 / size), resamples) for size in values.shape
    ]
    total = np.einsum("rs,si,ri->r", draws[0], filled, draws[1], optimize=True)
    count = np.einsum("rs,si,ri->r", draws[0], known.astype(float), draws[1], optimize=True)
    tail = (1 - confidence) / 2
    low, high = np.quantile(total[count > 0] / count[count > 0], [tail, 1 - tail])
    used = int(known.sum())
    return Estimate(filled.sum() / used, float(low), float(high), used, known.size - used)


def specifications(
    data: ImageData,
    settings: Iterable[Setting],
    removals: Iterable[str],
    *,
    seeds: int,
    images: int,
    train_here: bool = False,
    **options,
) -> pd.DataFrame:
    """Return mean r of every pair under every setting and removal, raw and normalised.

    Args:
        data: the first `images` test images are explained.
        settings: networks to compare, with `seeds` training seeds each.
        removals: what a removed pixel becomes, of `REMOVALS`.
        seeds: networks a setting.
        images: test images.
        train_here: train also where weights are shipped.
        options: of `explain`: baseline, readout.

    Returns:
        A row per setting, removal and pair: `setting`, `removal`, `pair`, `raw`, `normalized`,
        `flipped` (share of the images where exactly one map of the pair flips), `pooled`.
    """
    chosen = torch.from_numpy(data.test_images[:images])
    removals = tuple(removals)
    parts = []
    for setting in settings:
        trained = networks(data, setting, seeds, train_here=train_here)
        for removal in removals:
            rows = agreement(trained, chosen, removal=removal, **options)
            columns = ["raw", "normalized", "flipped", "pooled"]
            means = rows.groupby("pair", sort=False)[columns].mean().reset_index()
            parts.append(means.assign(setting=setting.name, removal=removal))
    table = pd.concat(parts, ignore_index=True)
    return table[["setting", "removal", *[c for c in table if c not in ("setting", "removal")]]]
