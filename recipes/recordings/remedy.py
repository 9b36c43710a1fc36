"""The mask gradient's maps at a cost, and leave-one-out's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.mask_gradient import passes_of_groups
from lrputils.study.by_text import in_batches

# Options of `mask_gradient` by the name of the setting.
SETTINGS: dict[str, dict[str, Any]] = {
    "one-pass": {},
    "first-order": {"form": "first-order"},
    "halves": {"groups": 2},
    "quarters": {"groups": 4},
    "eighths": {"groups": 8},
}
EXACT = "loo"


@in_batches("id", "target", "label", "content")
def remedy(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    settings: Sequence[str] = tuple(SETTINGS),
) -> Iterator[dict[str, Any]]:
    """Return every text's map under each setting, the predicted class explained.

    Cost is counted in forward passes of one text, a backward pass as two, and measured in processor
    seconds.

    `settings` are names from `SETTINGS`, and "loo" for leave-one-out itself; longer texts are cut.

    Returns:
        one row a text and setting: `id`, `target`, `label`, `content`, `setting`, `passes`,
        `seconds` (of the processor, the batch's shared among its texts by their tokens), `scores`.
    """
    strays = [name for name in settings if name not in (*SETTINGS, EXACT)]
    if strays or not settings:
        raise ValueError(f"unknown setting(s) {strays or ''}; choose from {[*SETTINGS, EXACT]}")
    lengths = inputs.lengths.tolist()
    for name in settings:
        exact = name == EXACT
        options = {"progress": False} if exact else SETTINGS[name]
        method = EXACT if exact else "mask-gradient"
        began = time.process_time()
        scores = attribute(classifier.model, inputs, method, target=target, **options)
        seconds = (time.process_time() - began) / sum(lengths)
        yield {
            "setting": name,
            "passes": lengths if exact else passes_of_groups(**options),
            "seconds": [round(seconds * length, 4) for length in lengths],
            "scores": scores,
        }
