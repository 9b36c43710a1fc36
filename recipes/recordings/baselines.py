"""Integrated Gradients from three baselines and both forms of rollout, with their curves."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.study.evaluation import evaluate
from lrputils.study.variants import Variant

VARIANTS = {
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

    `variants` are keys of `VARIANTS`; leave-one-out is measured anyway.

    Returns:
        `id`, `tokens`, `method`, `variant`; `r`, `r_content`, `r_normalised`, `flipped`, `lerf`,
        `morf` and `delta`.
    """
    asked = [Variant("/".join(key), key[0], VARIANTS[*key]) for key in variants]
    how = {"batch_size": batch_size, "max_length": max_length, "truncate": True}
    rows = evaluate(classifier, texts, asked, chunk=chunk, progress=False, **how).rows
    method, _, variant = zip(*(name.partition("/") for name in rows.method), strict=True)
    told = ["position", "readout", "family", "layer", "target", "label", "logit"]
    return rows.assign(method=method, variant=variant).drop(columns=told)
