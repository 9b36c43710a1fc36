"""What attention does, over texts: routes of relevance, even weights.

A route is a path of `lrputils.propagation.layerwise`, or queries and keys together. Each is
measured by what it delivers to the read-out: how much, and how far that agrees with exact LOO. What
stands at a layer's own input is not used: it depends on where that layer's LayerNorm puts its zero.

A classifier that loses nothing when every attention matrix becomes the uniform one reads a bag of
words; what attributions through its attention say is then of little interest. Models trained with
fixed attention are those of You, Sun and Iyyer (ACL 2020).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, nn

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, fused
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.operations import routed
from lrputils.propagation.composites import ATTN_LRP, Composite
from lrputils.propagation.layerwise import PATHS, relevance_paths
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.stats import Difference, Estimate, estimate, paired_difference
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


def attention_matters(classifier: Classifier, texts: Texts) -> dict[str, Estimate | Difference]:
    """Measure how far accuracy falls when every attention matrix is the uniform one.

    `texts` have labels, class numbers or the names of the model's classes; longer texts are cut to
    the model's limit.

    Returns:
        shares of texts classified correctly, each with its interval: "accuracy" with the model's
        attention, "uniform" with uniform attention, and their "fall", paired by text; then the fall
        with uniform attention in each quarter of the layers alone, as "layers 1 to 3".

    Raises:
        ValueError: texts without labels, a label that is none of the model's classes, or fewer than
            two texts.
    """
    own = correct(classifier, texts)

    def flattened(layers: range | None = None) -> np.ndarray:
        with uniform_attention(classifier.model, layers):
            return correct(classifier, texts)

    flat, depth = flattened(), classifier.architecture.layers
    found: dict[str, Estimate | Difference] = {"accuracy": estimate(own), "uniform": estimate(flat)}
    found["fall"] = paired_difference(own, flat)
    parts = min(4, depth)
    bounds = [depth * part // parts for part in range(parts + 1)]
    for start, end in pairwise(bounds):
        name = f"layers {start + 1} to {end}"
        found[name] = paired_difference(own, flattened(range(start, end)))
    return found


@contextmanager
def uniform_attention(model: nn.Module, layers: Container[int] | None = None) -> Iterator[None]:
    """Inside the block every query of `model` attends evenly to all keys that it may see.

    In `layers` only, counted from 0, if they are given.
    """

    def function(call: AttentionCall) -> tuple[Tensor, None]:
        chosen = layers is None or call.layer in layers
        return (call.combined(call.even_weights()), None) if chosen else fused(call)

    with routed(model, function):
        yield


def correct(classifier: Classifier, texts: Texts) -> np.ndarray:
    """Return whether each text is put into its class, booleans (texts,).

    ValueError for texts without labels, or a label that is none of the model's classes.
    """
    if texts.labels is None:
        raise ValueError(f"{texts.name!r} has no labels to measure accuracy on")
    names, numbers = classifier.labels, classifier.number_labels(texts.labels)
    if None in numbers:
        pairs = zip(texts.labels, numbers, strict=True)
        unknown = sorted({str(label) for label, number in pairs if number is None})
        raise ValueError(
            f"{texts.name!r} has labels {unknown[:5]} that are no class of {classifier.name!r}: "
            f"those are {list(names)}, or 0 to {len(names) - 1}"
        )
    rows = _classes(classifier, texts)
    return (rows.target == rows.label).to_numpy()


@in_batches("target", "label")
def _classes(*_: Any) -> Iterator[dict[str, Any]]:
    yield {}
