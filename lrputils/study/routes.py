"""The routes by which relevance arrives, over the texts of a data set.

A route is a path of `lrputils.propagation.layerwise`, or queries and keys together. Each is
measured by what it delivers to the read-out: how much, and how far that agrees with exact LOO. What
stands at a layer's own input is not used: it depends on where that layer's LayerNorm puts its zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.model.classifier import Classifier
from lrputils.propagation.composites import ATTN_LRP, Composite
from lrputils.propagation.layerwise import PATHS, relevance_paths
from lrputils.removal.packing import by_length

# The softmax is reached through queries and keys together.
ROUTES = {"value": ("value",), "query + key": ("query", "key"), "residual": ("residual",)}


def routes_by_layer(
    classifier: Classifier,
    texts: Sequence[str],
    reference: Sequence[np.ndarray],
    composite: Composite = ATTN_LRP,
    *,
    readout: str = "word",
    batch_size: int = 16,
) -> pd.DataFrame:
    """Return each route's share and its correlation with a reference, by text, layer and route.

    The class explained is the one predicted on the whole text.

    Args:
        reference: a map `(tokens,)` a text to compare the routes with: the exact LOO scores.
        composite: the rules.
        readout: where the maps are read that are compared with `reference`.

    Returns:
        A row a text, layer and route, columns `position` (of the text), `layer` (from 1), `route`;
        `share`: the sum over tokens of the absolute relevance that the route delivers to the
        read-out, as a share of that of the layer's three routes; `r`: its Pearson correlation with
        the reference; `r_without`: that of the whole map without it; `r_whole`: that of the whole
        map. NaN where a map is constant or a share 0 / 0.

    Raises:
        ValueError: not one reference a text, or one of another length than its text.
    """
    if len(reference) != len(texts):
        raise ValueError(f"{len(reference)} reference maps, but {len(texts)} texts")
    frames = []
    for rows in by_length(texts, batch_size):
        inputs = classifier.encode([texts[row] for row in rows])
        maps = [torch.as_tensor(np.asarray(reference[row])) for row in rows]
        found, lengths = [len(scores) for scores in maps], inputs.lengths.tolist()
        if found != lengths:
            raise ValueError(f"reference maps of {found} tokens, but texts of {lengths}")
        known = pad_sequence(maps, batch_first=True).numpy()
        carried = relevance_paths(classifier.model, inputs, composite, readout=readout)
        frames.append(_compared(rows, carried, known, inputs.valid_mask))
    return pd.concat(frames).sort_values(["position", "layer"], kind="stable", ignore_index=True)


def _by_route(scores: Tensor) -> dict[str, np.ndarray]:
    """Scores `(layers, paths, batch, tokens)` as `(layers, batch, tokens)` a route."""
    scores = scores.to("cpu", torch.float64).numpy()
    return {
        route: scores[:, [PATHS.index(path) for path in paths]].sum(1)
        for route, paths in ROUTES.items()
    }


def _compared(
    rows: Sequence[int], carried: Tensor, reference: np.ndarray, valid: Tensor
) -> pd.DataFrame:
    delivered = _by_route(carried)
    flow = {route: np.abs(scores).sum(2) for route, scores in delivered.items()}
    total = sum(flow.values())
    total[total == 0] = np.nan
    whole = sum(delivered.values())
    parts = [
        pd.DataFrame(
            {
                "position": rows,
                "layer": layer + 1,
                "route": route,
                "share": flow[route][layer] / total[layer],
                "r": stats.pearson(scores[layer], reference, valid),
                "r_without": stats.pearson(whole[layer] - scores[layer], reference, valid),
                "r_whole": stats.pearson(whole[layer], reference, valid),
            }
        )
        for layer in range(len(carried))
        for route, scores in delivered.items()
    ]
    return pd.concat(parts)
