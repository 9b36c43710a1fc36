"""Each text's maps beside several yardsticks: leave-one-out, its pairs, and Shapley values.

Maps are kept over the tokens that are not special, which stay in place under every removal here.
Chapter 8 compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal import shapley
from lrputils.removal.leave_one_out import leave_two_out
from lrputils.removal.shapley import shapley_values
from lrputils.study.by_text import in_batches

METHODS = ("attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "rollout")
EXACT, INTERACTIONS = "shapley-exact", "interactions"


@in_batches("id", "target", "label", "logit")
def measured(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    permutations: int = 16,
    exact: bool = False,
) -> Iterator[dict[str, Any]]:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    Called with a classifier and `Texts`, see `lrputils.study.by_text.in_batches`.

    Args:
        classifier: `load_classifier`'s answer.
        inputs: of a batch of the texts.
        target: the predicted classes.
        permutations: orders drawn for a text's Shapley values, see `shapley_values`.
        exact: whether to give the exact ones too, of every text that is short enough.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`, `method` and `scores`, a float32 array over the text's tokens that are not special.
        Methods are `METHODS`, "loo", "shapley", its standard errors and its estimates from either
        half of the orders, "shapley-exact"; and "interactions", I_ij of all pairs i < j, row by
        row.
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
    maps |= {method: attribute(model, inputs, method, target=target) for method in METHODS}
    words = inputs.content_mask.cpu().numpy()
    for method, scores in maps.items():
        scores = scores.float().cpu().numpy()
        if method == INTERACTIONS:
            both = [row[np.ix_(own, own)] for row, own in zip(scores, words, strict=True)]
            kept = [row[np.triu_indices(len(row), 1)] for row in both]
        else:
            kept = [row[own] for row, own in zip(scores, words, strict=True)]
        yield {"method": method, "scores": kept}
    if exact:
        yield {"method": EXACT, "scores": _enumerated(classifier, inputs, target)}


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
