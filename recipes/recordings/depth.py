"""Depth within one model: gates on the keys of the last k layers against exact removal there.

With k layers gated, exact leave-one-out hides a token's key in those layers alone, and the mask
gradient is the sum of those layers' shares. So the same model serves at every depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.model.attention import Recorder, routed
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.removal.mask_gradient import Gates, block_scores
from lrputils.study.by_text import in_batches
from recipes.recordings.layer_pairs import losses


@in_batches("id", "tokens")
def measure(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    forms: tuple[str, ...] = ("exact-block", "first-order"),
) -> Iterator[dict[str, Any]]:
    """Return a row a text, form of the estimate and number of gated layers; long texts are cut.

    Returns:
        `id`, `tokens`, `form`, `k` (the last k layers are gated); over all tokens and over the
        text's own (`_content`): `r`, `spearman`, and `error`, Σ|estimate − LOO| / Σ|LOO|.
    """
    depth = classifier.architecture.layers
    estimates = {form: by_layer(classifier, inputs, target, form) for form in forms}
    places = {"": inputs.valid_mask, "_content": inputs.content_mask}
    for k in range(1, depth + 1):
        exact = []
        for ids, length, chosen in zip(inputs["input_ids"], inputs.lengths, target, strict=True):
            one_each = torch.eye(int(length), dtype=torch.bool, device=ids.device)
            exact.append(losses(classifier, ids[:length], int(chosen), depth - k, one_each))
        loo = pad_sequence(exact, batch_first=True).double()
        for form, shares in estimates.items():
            estimate, found = shares[depth - k :].sum(0).double(), {}
            for suffix, where in places.items():
                off, whole = ((x.abs() * where).sum(1) for x in (estimate - loo, loo))
                found |= {
                    f"r{suffix}": stats.pearson(estimate, loo, where),
                    f"spearman{suffix}": stats.spearman(estimate, loo, where),
                    f"error{suffix}": off / whole,
                }
            yield {"form": form, "k": k, **found}


def by_layer(classifier: Classifier, inputs: Inputs, target: Tensor, form: str) -> Tensor:
    """Each layer's share of the mask gradient with all gates open, (layers, batch, tokens)."""
    gates = Gates(form)
    with torch.inference_mode(False), routed(classifier.model, blocks := Recorder(gates)):
        reading = read(classifier.architecture, inputs, target=target)
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    return block_scores(reading, blocks.calls, gradients, gates)
