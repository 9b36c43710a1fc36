"""Integrated Gradients from three baselines and both forms of rollout, with their curves."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.perturbation import perturbation_scores
from lrputils.study.by_text import in_order, predicted
from lrputils.study.evaluation import compare

VARIANTS = {
    ("loo", ""): {"progress": False},
    ("ig", "pad"): {"baseline": "pad"},
    ("ig", "zero"): {"baseline": "zero"},
    ("ig", "mask"): {"baseline": "mask"},
    ("rollout", "paper"): {"variant": "paper"},
    ("rollout", "abnar"): {"variant": "abnar"},
}


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    chunk: int = 1,
    variants: Sequence[tuple[str, str]] = tuple(VARIANTS),
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text and variant, the predicted class explained; longer texts are cut.

    `variants` are keys of `VARIANTS`, leave-one-out among them.

    Returns:
        `id`, `tokens`, `method`, `variant`; `r`, `r_content`, `r_normalised`, `flipped`, `lerf`,
        `morf` and `delta`.
    """
    rows = []
    for inputs, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        maps = {
            (method, variant): attribute(
                classifier.model, inputs, method, target=target, **VARIANTS[method, variant]
            )
            for method, variant in map(tuple, variants)
        }
        loo = maps["loo", ""].cpu()
        compared = {key: compare(scores.cpu(), loo, inputs) for key, scores in maps.items()}
        scores = torch.stack(list(maps.values()))
        curves = perturbation_scores(classifier.model, inputs, scores, chunk, target=target)
        for number, row in enumerate(of_texts):
            told = {"position": row["position"], "id": row["id"], "tokens": len(row["content"])}
            for m, (method, variant) in enumerate(maps):
                curve = {k: float(v[m, number]) for k, v in curves._asdict().items()}
                rows.append({**told, "method": method, "variant": variant})
                rows[-1] |= {**compared[method, variant][number], **curve}
    return in_order(rows)
