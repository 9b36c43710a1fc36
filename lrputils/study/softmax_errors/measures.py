"""The softmax errors as numbers, a row a text and layer, and how two of them order the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import ArrayLike

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.packing import bar, by_length
from lrputils.study.by_text import wide
from lrputils.study.softmax_errors.blocks import SoftmaxMaps, softmax_maps

# What `layer_errors` measures, in words.
MEASURES = {
    "entropy": "attention entropy, as a share of the largest possible",
    "structural": "share of the value path's relevance that ignores the values",
    "uniform": "share of it that every token gets alike",
    "linearisation": "relative error of the Taylor estimate of removals",
    "r_value": "r with removal: the value path (CP-LRP)",
    "r_softmax": "r with removal: the softmax path",
    "r_attnlrp": "r with removal: AttnLRP's mixture of both",
    "r_taylor": "r with removal: the Taylor estimate",
}

# The sign that a measure's rank correlation with the gains has if the paper's reason is right: flat
# attention and linearisation speak for CP's rule; structural bias, all of it in the value path,
# against it; a better account of removals inside the block, for it.
PREDICTED = {
    "entropy": 1,
    "structural": -1,
    "uniform": -1,
    "linearisation": 1,
    "value − attnlrp": 1,
}


def layer_errors(
    classifier: Classifier,
    texts: Texts | Sequence[str],
    *,
    batch_size: int = 16,
    max_length: int | None = None,
    truncate: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure the attention blocks of a classifier on a data set.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer, or plain strings.
        batch_size: texts a batch.
        max_length: longest text allowed, in tokens; the model's own limit if not given.
        truncate: cut longer texts instead of refusing them.
        progress: whether to draw a progress bar.

    Returns:
        A row a text and layer: `position` and `id` of the text, `layer` (from 1), and the columns
        of `MEASURES`: `entropy`; `structural`, the share ``|structural| / (|structural| +
        |contrast|)`` of absolute values summed over tokens; `uniform`, likewise ``|uniform| /
        (|uniform| + |attended| + |contrast|)``; `linearisation`, ``|taylor − removal| /
        |removal|``; and Pearson's r over the text's tokens between `removal` and each account of
        it. NaN where a quotient or correlation is undefined.

    Raises:
        ValueError: there are no texts, or one that cannot be encoded.
    """
    if not len(texts):
        raise ValueError("there are no texts to measure")
    ids = texts.ids if isinstance(texts, Texts) else tuple(map(str, range(len(texts))))
    frames = []
    for batch in bar(progress, iterable=by_length(texts, batch_size), desc="texts", unit="batch"):
        inputs = classifier.encode([texts[i] for i in batch], max_length, truncate=truncate)
        measured = measures(softmax_maps(classifier.model, inputs))
        head = {"position": batch, "id": [ids[row] for row in batch]}
        for layer, values in enumerate(zip(*measured.values(), strict=True), 1):
            columns = dict(zip(measured, values, strict=True))
            frames.append(pd.DataFrame({**head, "layer": layer, **columns}))
    return pd.concat(frames).sort_values(["position", "layer"], ignore_index=True)


def measures(maps: SoftmaxMaps) -> dict[str, np.ndarray]:
    """The numbers of `MEASURES`, each float64 (layers, batch); see `layer_errors`."""
    size = {
        name: getattr(maps, name).abs().double().sum(-1)
        for name in ("structural", "uniform", "attended", "contrast", "removal")
    }
    error = (maps.taylor - maps.removal).abs().double().sum(-1)
    shares = {
        "structural": size["structural"] / (size["structural"] + size["contrast"]),
        "uniform": size["uniform"] / (size["uniform"] + size["attended"] + size["contrast"]),
        "linearisation": error / size["removal"],
    }
    found = {
        "entropy": maps.entropy.double().cpu().numpy(),
        **{name: x.where(x.isfinite(), torch.nan).cpu().numpy() for name, x in shares.items()},
    }
    for name in ("value", "softmax", "attnlrp", "taylor"):
        pairs = zip(getattr(maps, name), maps.removal, strict=True)
        found[f"r_{name}"] = np.stack([stats.pearson(*pair, where=maps.valid) for pair in pairs])
    return found


def per_layer(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """One measure of `layer_errors`' rows, or of recorded ones, as (texts, layers from 1)."""
    return wide(rows, measure, "layer").rename_axis(columns=None)


def estimates_by_layer(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each measure's mean over texts by layer, with its interval: measure → `stats.estimates`."""
    return {name: stats.estimates(per_layer(rows, name)) for name in MEASURES}


def against_gains(gains: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """How each measure orders the layers, compared with their gains: see `across_layers`.

    Args:
        gains: (texts, layers), as `single_layer_gains` gives them.
        rows: of `layer_errors`, or recorded; texts that both have are compared.

    Returns:
        A row a measure: entropy, structural, uniform, linearisation, and `value − attnlrp`, by how
        much CP-LRP's account of a removal is better than AttnLRP's inside the block itself.
        Columns are those of `RankAgreement`.
    """
    rows = rows.assign(**{"value − attnlrp": rows.r_value - rows.r_attnlrp})
    agreements = [
        across_layers(*gains.align(per_layer(rows, measure), join="inner", axis=0))
        for measure in PREDICTED
    ]
    return pd.DataFrame(agreements, index=list(PREDICTED))


def as_predicted(explained: Mapping[str, pd.DataFrame]) -> list[str]:
    """Name the measures whose rho has the sign of `PREDICTED` in every run.

    Args:
        explained: run → table of `against_gains`. A rho that is 0 or NaN has no sign.
    """
    return [
        measure
        for measure, sign in PREDICTED.items()
        if all(sign * table.loc[measure, "rho"] > 0 for table in explained.values())
    ]


class RankAgreement(NamedTuple):
    """How alike two measurements order the layers.

    Attributes:
        rho: Spearman's rank correlation over layers, of the two means over texts; NaN where one of
            them is the same in every layer.
        low: lower end of its 95% interval, texts resampled.
        high: upper end.
        p: how often a random order of the layers is as far from 0, in either direction.
        layers: how many layers there are.
    """

    rho: float
    low: float
    high: float
    p: float
    layers: int


def across_layers(first: ArrayLike, second: ArrayLike, *, resamples: int = 2000) -> RankAgreement:
    """Compare two measurements by the order in which they put the layers.

    The interval covers the choice of texts, not of models: would the orders agree on other texts of
    the same kind? p covers the choice of layers, and with a dozen of them it rarely says much: they
    are few, and neighbours are alike.

    Args:
        first: (texts, layers); a text with a NaN in either is left out.
        second: the same shape, of the same texts.
        resamples: bootstrap samples of the texts, and random orders of the layers.

    Raises:
        ValueError: shapes differ, fewer than two layers, or no text left. A single text has no
            interval: its ends are NaN.
    """
    left, right = (np.asarray(values, dtype=np.float64) for values in (first, second))
    if left.shape != right.shape or left.ndim != 2:
        raise ValueError(f"shapes {left.shape} and {right.shape}: both are (texts, layers)")
    kept = ~(np.isnan(left).any(1) | np.isnan(right).any(1))
    left, right, layers = left[kept], right[kept], left.shape[1]
    if layers < 2 or not len(left):
        raise ValueError(
            f"{layers} layers and {len(left)} complete texts: an order of layers can be compared "
            "from two layers and one text on"
        )
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(left), size=(resamples, len(left)))
    shares = np.stack([np.bincount(row, minlength=len(left)) for row in drawn]) / len(left)
    boot = stats.spearman(shares @ left, shares @ right)
    rho = float(stats.spearman(left.mean(0), right.mean(0))[0])
    ranks = scipy.stats.rankdata(right.mean(0))
    shuffled = generator.permuted(np.tile(ranks, (resamples, 1)), axis=1)
    chance = stats.spearman(np.tile(left.mean(0), (resamples, 1)), shuffled)
    as_far = np.count_nonzero(np.abs(chance) >= abs(rho) - 1e-9)
    boot = boot[~np.isnan(boot)] if len(left) > 1 else boot[:0]
    tail = (1 - 0.95) / 2
    low, high = np.quantile(boot, [tail, 1 - tail]) if len(boot) else (np.nan, np.nan)
    p = float(1 + as_far) / (1 + resamples) if np.isfinite(rho) else np.nan
    return RankAgreement(rho, float(low), float(high), p, layers)
