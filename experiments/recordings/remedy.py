"""The mask gradient's maps at a cost, and leave-one-out's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from experiments.by_text import MAP, in_batches
from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.study.variants import Variant

ESTIMATES = (
    "mask-gradient",
    "mask-gradient:form=first-order",
    "mask-gradient:groups=2",
    "mask-gradient:groups=4",
    "mask-gradient:groups=8",
)


@in_batches("id", "target", "label", "content")
def remedy(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    methods: Sequence[str] = ESTIMATES,
) -> Iterator[dict[str, Any]]:
    """Return every text's map by each method, the predicted class explained.

    Cost is counted in forward passes of one text, a backward pass as two, and measured in processor
    seconds.

    `methods` are names of `lrp.METHODS` with options, as "mask-gradient:groups=2"; longer texts are
    cut.

    Returns:
        one row a text and method: `id`, `target`, `label`, `content`; the columns of `MAP`;
        `passes`, `seconds` (of the processor, the batch's shared among its texts by their tokens),
        `scores`.
    """
    lengths = inputs.lengths.tolist()
    for variant in map(Variant.of, methods):
        method, options = variant.columns
        began = time.process_time()
        scores = attribute(
            classifier.model, inputs, variant.method, target=target, **variant.options
        )
        seconds = (time.process_time() - began) / sum(lengths)
        yield {
            **MAP,
            "method": method,
            "options": options,
            "removal": "attention-mask" if method == "loo" else "",
            "passes": [variant.passes(length) for length in lengths],
            "seconds": [round(seconds * length, 4) for length in lengths],
            "scores": scores,
        }
