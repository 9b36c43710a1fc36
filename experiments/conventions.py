"""One text's maps: under each convention that an LRP experiment must choose, and beside yardsticks.

The paper's question, does LRP track leave-one-out, has an answer for each choice of rules, read-out
and removal (`maps`); how maps are then normalised, which tokens count and which coefficient
compares them is in `lrputils.study.agreement`, which reads these maps. Yardsticks are
leave-one-out, its pairs, and Shapley values; their maps are kept over the tokens that are not
special, which stay in place under every removal there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.by_text import MAP, in_batches
from lrputils.attribution import attribute
from lrputils.attribution.methods import lrp_at_blocks
from lrputils.mistakes import one_of
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import (
    ATTN_LRP,
    CANONISED_LRP,
    CP_LRP,
    GRADIENT,
    Composite,
    propagating,
)
from lrputils.removal import shapley
from lrputils.removal.coalitions import REMOVALS
from lrputils.removal.leave_one_out import leave_one_out, leave_two_out
from lrputils.removal.shapley import shapley_values
from lrputils.study.variants import Variant

# What stands for attention: the two methods, controls that change one thing, and the gradient.
ATTENTION = {
    "attnlrp": ATTN_LRP,
    "cp-lrp": CP_LRP,
    **{
        name: ATTN_LRP.but(attention=name)
        for name in ("half-value", "whole-value", "query-closed", "key-closed", "identity")
    },
    "grad-x-input": GRADIENT,
}
# Attention as one unit, and by its plain gradient with AttnLRP's rules around it (RelP for GPT-2):
# measured where they are asked for.
_FURTHER = {
    ("canonised-lrp", ""): CANONISED_LRP,
    ("canonised-path", ""): ATTN_LRP.but(attention="path"),
    ("attention-gradient", ""): ATTN_LRP.but(attention="gradient"),
}
# What else an implementation may do otherwise, for both methods.
_OTHERWISE = (
    {"norm": "held"},
    {"norm": "gradient"},
    {"activation": "gradient"},
    {"head": "gradient"},
)


def _composites(layers: int) -> dict[tuple[str, str], Composite]:
    """Return the composites of a model by (method, its other rules; "" for the default).

    "front-half" and "back-half" are AttnLRP with CP-LRP's rule in that half of the layers.
    """
    named = ATTENTION | {
        "front-half": ATTN_LRP.bypass(range(layers // 2)),
        "back-half": ATTN_LRP.bypass(range(layers // 2, layers)),
    }
    found = {(name, ""): composite for name, composite in named.items()}
    for change in _OTHERWISE:
        rules = " ".join(f"{operation}={rule}" for operation, rule in change.items())
        found |= {(name, rules): ATTENTION[name].but(**change) for name in ("attnlrp", "cp-lrp")}
    return found


@in_batches("id", "target", "label", "logit", "content")
def maps(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    removals: Sequence[str] = tuple(REMOVALS),
    methods: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    Called with a classifier and `Texts`, see `experiments.by_text.in_batches`.

    Args:
        classifier: `load_classifier`'s answer.
        inputs: of a batch of the texts.
        target: the predicted classes.
        removals: those of `leave_one_out` to measure, one map each.
        methods: of `_composites` or `_FURTHER`, or of `lrp.METHODS` with options; the composites
            and "mask-gradient" if not given. Composites named are also read at the blocks, see
            `lrputils.attribution.methods.lrp_at_blocks`.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`; `method`, `options` (of a composite its other rules), `readout`, `removal` and
        `units`; `scores` and `content` (false at special tokens), both float32 or boolean arrays
        (tokens,).

    Raises:
        ValueError: an unknown removal or method.
    """
    known = _composites(classifier.architecture.layers) | _FURTHER
    for removal in removals:
        one_of("removals", removal, REMOVALS)
    model, composites = classifier.model, {name for name, _ in known}
    plain = ["mask-gradient"] if methods is None else [m for m in methods if m not in composites]
    for removal in removals:
        scores = leave_one_out(model, inputs, target=target, removal=removal, progress=False)
        yield {**MAP, "method": "loo", "removal": removal, "scores": scores}
    for variant in map(Variant.of, plain):
        method, options = variant.columns
        scores = attribute(model, inputs, variant.method, target=target, **variant.options)
        yield {**MAP, "method": method, "options": options, "scores": scores}
    for (method, rules), composite in known.items():
        if method in methods if methods is not None else (method, rules) not in _FURTHER:
            found = lrp_everywhere(model, inputs, composite, target)
            if methods is not None:
                found["blocks"] = lrp_at_blocks(model, inputs, composite, target=target)
            for place, scores in found.items():
                which = {"method": method, "options": rules, "readout": place}
                yield {**MAP, **which, "scores": scores}


def lrp_everywhere(
    model: nn.Module, inputs: Mapping[str, Any], composite: Composite, target: Target
) -> dict[str, Tensor]:
    """LRP's maps at every read-out that the model has, by one forward and backward pass."""
    with propagating(model, composite) as architecture:
        reading = read(architecture, inputs, target=target)
    sites, values = zip(*reading.places.values(), strict=True)
    flowing = torch.autograd.grad(reading.output.sum(), sites)
    return dict(zip(reading.places, map(reading.relevance, flowing, values), strict=True))


BESIDE = ("attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "rollout")
EXACT, INTERACTIONS = "shapley-exact", "interactions"


@in_batches("id", "target", "label", "logit")
def yardstick(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    permutations: int = 16,
    exact: bool = False,
) -> Iterator[dict[str, Any]]:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    Called with a classifier and `Texts`, see `experiments.by_text.in_batches`.

    Args:
        classifier: `load_classifier`'s answer.
        inputs: of a batch of the texts.
        target: the predicted classes.
        permutations: orders drawn for a text's Shapley values, see `shapley_values`.
        exact: whether to give the exact ones too, of every text that is short enough.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`, the columns of `MAP`, and `scores`, a float32 array over the text's tokens that are
        not special, as `content` says. Methods are `BESIDE`, "loo", "shapley", its standard errors
        and its estimates from either half of the orders, "shapley-exact"; and "interactions", I_ij
        of all pairs i < j, row by row.
    """
    model, how = classifier.model, {"target": target, "progress": False}
    sampled = shapley_values(model, inputs, permutations=permutations, **how)
    halves = sampled.draws.tensor_split(2)
    pairs = leave_two_out(model, inputs, **how)
    maps = {
        "loo": pairs.loo,
        "shapley": sampled.scores,
        "shapley-error": sampled.errors,
        "shapley-first": halves[0].mean(0),
        "shapley-second": halves[1].mean(0),
        INTERACTIONS: pairs.interactions,
    }
    maps |= {method: attribute(model, inputs, method, target=target) for method in BESIDE}
    words = inputs.content_mask.cpu().numpy()
    for method, scores in maps.items():
        scores = scores.float().cpu().numpy()
        if method == INTERACTIONS:
            both = [row[np.ix_(own, own)] for row, own in zip(scores, words, strict=True)]
            kept = [row[np.triu_indices(len(row), 1)] for row in both]
        else:
            kept = [row[own] for row, own in zip(scores, words, strict=True)]
        yield _own(method, kept)
    if exact:
        yield _own(EXACT, _enumerated(classifier, inputs, target))


def _own(method: str, scores: list[np.ndarray | None]) -> dict[str, Any]:
    """Columns of a map over the tokens that are not special."""
    return {
        **MAP,
        "method": method,
        "readout": "word" if method in ("attnlrp", "cp-lrp", "grad-x-input") else "",
        "removal": "attention-mask" if method == "loo" else "",
        "content": [None if map_ is None else np.ones(len(map_), bool) for map_ in scores],
        "scores": scores,
    }


def _enumerated(classifier: Classifier, inputs: Inputs, target: Tensor) -> list[np.ndarray | None]:
    """Exact Shapley values of each text, None for those that are too long."""
    short = (inputs.content_mask.sum(1) <= shapley.LONGEST).nonzero().flatten()
    found: list[np.ndarray | None] = [None] * len(inputs.content_mask)
    if len(short):
        how = {"target": target[short.to(target.device)], "progress": False}
        some = inputs.rows(short)
        exact = shapley_values(classifier.model, some, permutations=shapley.ALL, **how)
        for text, row, where in zip(short.tolist(), exact.scores, some.content_mask, strict=True):
            found[text] = row[where].float().cpu().numpy()
    return found
