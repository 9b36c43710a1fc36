"""Each text's maps beside several yardsticks: leave-one-out, its pairs, and Shapley values.

Maps are kept over the tokens that are not special, which stay in place under every removal here.
Chapter 8 compares them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal import shapley
from lrputils.removal.leave_two_out import leave_two_out
from lrputils.removal.shapley import shapley_values
from lrputils.study.by_text import in_order, predicted

Array = np.ndarray
METHODS = ("attnlrp", "cp-lrp", "mask-gradient", "ig", "grad-x-input", "rollout")
EXACT, INTERACTIONS = "shapley-exact", "interactions"


def measured(
    classifier: Classifier,
    texts: Texts,
    *,
    permutations: int = 16,
    exact: bool = False,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return every map of every text, the predicted class explained; longer texts are cut.

    `permutations` are the orders drawn for a text's Shapley values, see `shapley_values`; `exact`
    asks for the exact ones too, of every text that is short enough for all of its orders.

    Returns:
        one row a text and map: `id`, `target`, `label` (the text's own class, None without one),
        `logit`, `method` and `scores`, a float32 array over the text's tokens that are not special.
        Methods are `METHODS`, "loo", "shapley", its standard errors and its estimates from either
        half of the orders, "shapley-exact"; and "interactions", I_ij of all pairs i < j, row by
        row.
    """
    rows = []
    for inputs, target, texts_rows in predicted(classifier, texts, batch_size, max_length):
        maps = _maps(classifier, inputs, target, permutations)
        enumerated = _enumerated(classifier, inputs, target) if exact else {}
        for number, row in enumerate(texts_rows):
            content = np.flatnonzero(row["content"])
            scores = {name: values[number][content] for name, values in maps.items()}
            if number in enumerated:
                scores[EXACT] = enumerated[number][content]
            both = scores[INTERACTIONS][:, content]
            scores[INTERACTIONS] = both[np.triu_indices(len(both), 1)]
            rows += [{**row, "method": m, "scores": s} for m, s in scores.items()]
    return in_order(rows, "content")


def _maps(
    classifier: Classifier, inputs: Inputs, target: Any, permutations: int
) -> dict[str, Array]:
    model = classifier.model
    how = {"target": target, "progress": False}
    sampled = shapley_values(model, inputs, permutations=permutations, **how)
    halves = sampled.draws.tensor_split(2)
    pairs = leave_two_out(model, inputs, **how)
    found = {
        "loo": pairs.loo,
        "shapley": sampled.scores,
        "shapley-error": sampled.errors,
        "shapley-first": halves[0].mean(0),
        "shapley-second": halves[1].mean(0),
        INTERACTIONS: pairs.interactions,
    }
    found |= {method: attribute(model, inputs, method, target=target) for method in METHODS}
    return {name: values.float().cpu().numpy() for name, values in found.items()}


def _enumerated(classifier: Classifier, inputs: Inputs, target: Tensor) -> dict[int, Array]:
    """Exact Shapley values by the number of the text, for those that are short enough."""
    short = (inputs.content_mask.sum(1) <= shapley.LONGEST).nonzero().flatten()
    if not len(short):
        return {}
    how = {"target": target[short.to(target.device)], "progress": False}
    found = shapley_values(classifier.model, inputs.rows(short), permutations=shapley.ALL, **how)
    return dict(zip(short.tolist(), found.scores.float().cpu().numpy(), strict=True))
