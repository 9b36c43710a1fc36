"""How far the maps of the two graphs agree with each other and with LOO, raw and normalised.

Rows first (a network, an image, a pair of maps), means with intervals after. It draws nothing and
knows no published number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files

import numpy as np
import pandas as pd
from torch import Tensor

from lrputils.linear_attention.attribution import (
    REMOVALS,
    explain,
    leave_one_out,
    propagated,
)
from lrputils.linear_attention.model import LEFT, RIGHT, TERNARY, LinearAttention
from lrputils.stats import Estimate, pearson, sum_to_one

RECORDED = "mnist_half.csv"
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
    known = ~np.isnan(values)
    if not known.any():
        raise ValueError("All values are NaN: no pair of maps has a correlation")
    filled = np.where(known, values, 0.0)
    draws = _draws(values.shape, resamples, seed)
    total = np.einsum("rs,si,ri->r", draws[0], filled, draws[1], optimize=True)
    count = np.einsum("rs,si,ri->r", draws[0], known.astype(float), draws[1], optimize=True)
    tail = (1 - confidence) / 2
    low, high = np.quantile(total[count > 0] / count[count > 0], [tail, 1 - tail])
    used = int(known.sum())
    return Estimate(float(filled.sum() / used), float(low), float(high), used, known.size - used)


@lru_cache(maxsize=4)
def _draws(shape: tuple[int, int], resamples: int, seed: int) -> list[np.ndarray]:
    """Return how often each resample draws each seed and each image, (resamples, size) both."""
    generator = np.random.default_rng(seed)
    return [
        generator.multinomial(size, np.full(size, 1 / size), resamples).astype(float)
        for size in shape
    ]


def specifications(
    trained: Iterable[Sequence[LinearAttention]],
    images: Tensor,
    removals: Iterable[str] = REMOVALS,
    **options,
) -> pd.DataFrame:
    """Return mean r of every pair under every setting and removal, raw and normalised.

    Args:
        trained: for each setting its networks, of several training seeds.
        images: grey levels from 0 to 1, (images, tokens).
        removals: what a removed pixel becomes. Where black is 0 ("unit" scaling), "black" is left
            out beside "zero".
        options: of `explain`: baseline, readout.

    Returns:
        A row per setting, removal and pair: `setting`, `removal`, `pair`; `raw` and `normalized`
        with their intervals (`raw low`, `raw high`, …) over seeds and images; `flipped`, the share
        of the images where exactly one map of the pair flips; `pooled`, mean over the seeds.
    """
    removals = tuple(removals)
    records = []
    for seeds in trained:
        setting = seeds[0].setting
        same = [propagated(network, images, **options) for network in seeds]
        for removal in removals:
            if removal == "black" and setting.scaling == "unit" and "zero" in removals:
                continue
            loo = [leave_one_out(network, images, removal=removal) for network in seeds]
            maps = [{"LOO": scores} | others for scores, others in zip(loo, same, strict=True)]
            rows = pd.concat(map(_rows, maps, range(len(maps))), ignore_index=True)
            where = {"setting": setting.name, "removal": removal}
            records += [where | record for record in _records(rows)]
    return pd.DataFrame(records)


def _records(rows: pd.DataFrame) -> list[dict]:
    """Return a record per pair: the means of `agreement`'s rows with their intervals."""
    means = rows.groupby("pair", sort=False)[["flipped", "pooled"]].mean()
    columns = {column: estimates(rows, column) for column in ("raw", "normalized")}
    records = []
    for pair in means.index:
        record = {"pair": pair}
        for column, found in columns.items():
            value, low, high = found[pair][:3]
            record |= {column: value, f"{column} low": low, f"{column} high": high}
        records.append(record | means.loc[pair].to_dict())
    return records


def recorded_specifications() -> pd.DataFrame:
    """Return the table of `specifications` that was recorded on MNIST's 10,000-image half.

    `python -m lrputils.linear_attention --record FILE --dataset FOLDER` made it; its first lines,
    comments, say on what.
    """
    path = files("lrputils") / "assets" / "linear_attention" / RECORDED
    return pd.read_csv(str(path), comment="#")


def nearest_first(
    table: pd.DataFrame, published: pd.Series, column: str = "normalized"
) -> pd.DataFrame:
    """Return one row per setting and removal, those nearest to published numbers first.

    Args:
        table: of `specifications`.
        published: r by pair; its pairs become the columns.
        column: "normalized" or "raw".

    Returns:
        `column` of each pair, and `largest miss`: the largest absolute difference from the
        published numbers, by which the rows are sorted.
    """
    wide = table.assign(reading=table["setting"] + ", " + table["removal"]).pivot(
        index="reading", columns="pair", values=column
    )
    wide = wide[list(published.index)].rename_axis(index=None, columns=None)
    miss = (wide - published).abs().max(axis=1)
    return wide.assign(**{"largest miss": miss}).sort_values("largest miss")
