"""The softmax errors as numbers, a row a text and layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.packing import bar, by_length
from lrputils.study.softmax_errors.blocks import SoftmaxMaps, softmax_maps

# What `layer_errors` measures, in words.
MEASURES = {
    "entropy": "attention entropy, as a share of the largest possible",
    "linearisation": "relative error of the Taylor estimate of removals",
    "r_taylor": "r with removal: the Taylor estimate",
    "structural": "share of the value path that ignores the token's value, V from its mean",
    "r_value": "r with removal: the value path, V from its mean",
    "r_softmax": "r with removal: the softmax path, Z from its mean",
    "r_softmax_attended": "r with removal: the softmax path, Z from its attended mean",
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
    """Measure a classifier's attention blocks on a data set; arguments as in `lrputils.evaluate`.

    Returns:
        A row a text and layer: `position` and `id` of the text, `layer` (from 1), and the columns
        of `MEASURES`: `entropy`; `linearisation`, ``|contrast − removal| / |removal|`` of absolute
        values summed over tokens; `structural`, ``|structural| / (|structural| + |contrast|)``; and
        Pearson's r over the text's tokens between `removal` and each account of it. NaN where a
        quotient or correlation is undefined. All are the same in every parameterisation of one
        function, but those after `r_taylor` rest on a choice of zero (see `softmax_maps`).

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
    error = maps.contrast - maps.removal
    structural, contrast, removal, error = (
        scores.abs().double().sum(-1)
        for scores in (maps.structural, maps.contrast, maps.removal, error)
    )
    found = {
        "entropy": maps.entropy.double(),
        "linearisation": error / removal,
        "structural": structural / (structural + contrast),
    }
    found = {name: x.where(x.isfinite(), torch.nan).cpu().numpy() for name, x in found.items()}
    accounts = {
        "r_taylor": maps.contrast,
        "r_value": maps.value,
        "r_softmax": maps.softmax,
        "r_softmax_attended": maps.softmax_attended,
    }
    for name, account in accounts.items():
        pairs = zip(account, maps.removal, strict=True)
        found[name] = np.stack([stats.pearson(*pair, where=maps.valid) for pair in pairs])
    return {name: found[name] for name in MEASURES}
