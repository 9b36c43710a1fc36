"""How much of a prediction needs attention weights: uniform attention in some or all layers."""

from __future__ import annotations

import pandas as pd
import torch

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import run
from lrputils.study.by_text import in_order, predicted
from lrputils.study.uniform_attention import uniform_attention


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text and part of the layers whose attention becomes uniform.

    Returns:
        `id`, `label`, `target` (the class predicted on the whole text by the model as it is),
        `part` ("none", "all", "first half", "second half"), `predicted`, and `logit` of `target`.
    """
    rows, depth = [], classifier.architecture.layers
    parts = {
        "none": range(0),
        "all": range(depth),
        "first half": range(depth // 2),
        "second half": range(depth // 2, depth),
    }
    for inputs, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        arguments = classifier.architecture.arguments(inputs)
        for part, layers in parts.items():
            with torch.inference_mode(), uniform_attention(classifier.model, layers):
                logits = run(classifier.architecture, arguments)
            chosen = logits.gather(1, target[:, None])[:, 0].tolist()
            for row, number, logit in zip(of_texts, logits.argmax(1).tolist(), chosen, strict=True):
                told = {name: row[name] for name in ("position", "id", "label", "target")}
                rows.append({**told, "part": part, "predicted": number, "logit": logit})
    return in_order(rows)
