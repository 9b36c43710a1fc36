"""The routes by which relevance arrives, over the texts of a data set.

A route is a path of `lrputils.propagation.paths`, or queries and keys together. Each is measured by
what it delivers to the read-out: how much, and how far that agrees with exact LOO. What stands at a
layer's own input is not used: it depends on where that layer's LayerNorm puts its zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from lrputils import stats
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.composites import ATTN_LRP, Composite
from lrputils.propagation.layerwise import PATHS, relevance_paths
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.by_text import in_batches

# The softmax is reached through queries and keys together.
ROUTES = {"value": ("value",), "query + key": ("query", "key"), "residual": ("residual",)}


@in_batches("id")
def routes_by_layer(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    readouts: Sequence[str] = ("word",),
    composite: Composite = ATTN_LRP,
) -> Iterator[dict[str, Any]]:
    """Return each route's share and its correlation with exact LOO, by text, layer and route.

    Called with a classifier and texts, see `lrputils.study.by_text.in_batches`; the class predicted
    on each whole text is explained.

    Args:
        classifier: `load_classifier`'s answer.
        inputs: of a batch of the texts.
        target: the predicted classes.
        readouts: where the maps are read that are compared with LOO.
        composite: the rules.

    Returns:
        a row a text, read-out, layer and route: `id`, `readout`, `layer` (from 1), `route`;
        `share`: the sum over tokens of the absolute relevance that the route delivers to the
        read-out, as a share of that of the layer's three routes; `r`: its Pearson correlation with
        LOO; `r_without`: that of the whole map without it; `r_whole`: that of the whole map. NaN
        where a map is constant or a share 0 / 0.
    """
    loo = leave_one_out(classifier.model, inputs, target=target, progress=False).double()
    valid = inputs.valid_mask
    for readout in readouts:
        how = {"target": target, "readout": readout}
        carried = relevance_paths(classifier.model, inputs, composite, **how).double()
        for layer, paths in enumerate(carried):
            by_path = dict(zip(PATHS, paths, strict=True))
            whole = paths.sum(0)
            delivered = {r: sum(by_path[path] for path in own) for r, own in ROUTES.items()}
            total = sum(scores.abs().sum(1) for scores in delivered.values())
            for route, scores in delivered.items():
                yield {
                    "readout": readout,
                    "layer": layer + 1,
                    "route": route,
                    "share": scores.abs().sum(1) / total,
                    "r": stats.pearson(scores, loo, valid),
                    "r_without": stats.pearson(whole - scores, loo, valid),
                    "r_whole": stats.pearson(whole, loo, valid),
                }
