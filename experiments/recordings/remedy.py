"""The mask gradient's maps at a cost, and leave-one-out's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from experiments.by_text import in_batches
from lrputils.attribution import METHODS, attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs

# Name of the setting → the method, and its options.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "one-pass": ("mask-gradient", {}),
    "first-order": ("mask-gradient", {"form": "first-order"}),
    "halves": ("mask-gradient", {"groups": 2}),
    "quarters": ("mask-gradient", {"groups": 4}),
    "eighths": ("mask-gradient", {"groups": 8}),
    "loo": ("loo", {"progress": False}),
}


@in_batches("id", "target", "label", "content")
def remedy(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    settings: Sequence[str] = tuple(name for name in SETTINGS if name != "loo"),
) -> Iterator[dict[str, Any]]:
    """Return every text's map under each setting, the predicted class explained.

    Cost is counted in forward passes of one text, a backward pass as two, and measured in processor
    seconds.

    `settings` are names from `SETTINGS`, by default without leave-one-out itself; longer texts are
    cut.

    Returns:
        one row a text and setting: `id`, `target`, `label`, `content`, `setting`, `passes`,
        `seconds` (of the processor, the batch's shared among its texts by their tokens), `scores`.
    """
    strays = [name for name in settings if name not in SETTINGS]
    if strays or not settings:
        raise ValueError(f"unknown setting(s) {strays or ''}; choose from {[*SETTINGS]}")
    lengths = inputs.lengths.tolist()
    for name in settings:
        method, options = SETTINGS[name]
        began = time.process_time()
        scores = attribute(classifier.model, inputs, method, target=target, **options)
        seconds = (time.process_time() - began) / sum(lengths)
        yield {
            "setting": name,
            "passes": [METHODS[method].passes(length, options) for length in lengths],
            "seconds": [round(seconds * length, 4) for length in lengths],
            "scores": scores,
        }
