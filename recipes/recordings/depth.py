"""Depth within one model: gates on the keys of the last k layers against exact removal there.

With k layers gated, exact leave-one-out hides a token's key in those layers alone, and the mask
gradient is the sum of those layers' shares. So the same model serves at every depth.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.attention import Recorder, routed
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.removal.mask_gradient import Gates, block_scores
from lrputils.study.by_text import in_order, predicted
from recipes.recordings.layer_pairs import losses


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    forms: tuple[str, ...] = ("exact-block", "first-order"),
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, form of the estimate and number of gated layers; long texts are cut.

    Returns:
        `id`, `tokens`, `form`, `k` (the last k layers are gated); over all tokens and over the
        text's own (`_content`): `r`, `spearman`, and `error`, Σ|estimate − LOO| / Σ|LOO|.
    """
    rows, depth = [], classifier.architecture.layers
    for inputs, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        estimates = {form: by_layer(classifier, inputs, target, form) for form in forms}
        for number, row in enumerate(of_texts):
            ids = inputs["input_ids"][number, : len(row["content"])]
            one_each = torch.eye(len(ids), dtype=torch.bool, device=ids.device)
            for k in range(1, depth + 1):
                exact = losses(classifier, ids, row["target"], depth - k, one_each)
                for form, shares in estimates.items():
                    estimate = shares[depth - k :, number, : len(ids)].sum(0)
                    told = {"position": row["position"], "id": row["id"], "tokens": len(ids)}
                    told |= {"form": form, "k": k}
                    rows.append(told | _compare(estimate, exact, row["content"]))
    return in_order(rows)


def by_layer(classifier: Classifier, inputs: Inputs, target: Tensor, form: str) -> Tensor:
    """Each layer's share of the mask gradient with all gates open, (layers, batch, tokens)."""
    gates = Gates(form)
    with torch.inference_mode(False), routed(classifier.model, blocks := Recorder(gates)):
        reading = read(classifier.architecture, inputs, target=target)
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    with torch.no_grad():
        pairs = zip(blocks.calls, gradients, strict=True)
        shares = [reading.per_token(block_scores(*pair, reading.head, gates)) for pair in pairs]
    return torch.stack(shares)


def _compare(estimate: Tensor, exact: Tensor, content: np.ndarray) -> dict[str, float]:
    ours, loo = (scores.double().cpu().numpy() for scores in (estimate, exact))
    found = {}
    for suffix, where in (("", slice(None)), ("_content", content)):
        a, b = ours[where], loo[where]
        found |= {
            f"r{suffix}": float(stats.pearson(a, b)[0]),
            f"spearman{suffix}": float(stats.spearman(a, b)[0]),
            f"error{suffix}": float(np.abs(a - b).sum() / np.abs(b).sum()),
        }
    return found
