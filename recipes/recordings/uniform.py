"""How much of a prediction needs attention weights: uniform attention in some or all layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.study.by_text import in_batches
from lrputils.study.uniform_attention import uniform_attention


@in_batches("id", "label", "target")
def measure(classifier: Classifier, inputs: Inputs, target: Tensor) -> Iterator[dict[str, Any]]:
    """Return a row a text and part of the layers whose attention becomes uniform.

    Returns:
        `id`, `label`, `target` (the class predicted on the whole text by the model as it is),
        `part` ("none", "all", "first half", "second half"), `predicted`, and `logit` of `target`.
    """
    depth = classifier.architecture.layers
    parts = {
        "none": range(0),
        "all": range(depth),
        "first half": range(depth // 2),
        "second half": range(depth // 2, depth),
    }
    for part, layers in parts.items():
        with torch.inference_mode(), uniform_attention(classifier.model, layers):
            logits = run(classifier.architecture, classifier.architecture.arguments(inputs))
        chosen = logits.gather(1, target[:, None])[:, 0]
        yield {"part": part, "predicted": logits.argmax(1), "logit": chosen}
