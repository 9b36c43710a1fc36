"""Removal in the last layers alone: the same model at every depth.

A token's key is hidden from a layer on, exactly; the mask gradient's estimate of that is the sum of
those layers' shares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from experiments.by_text import in_batches
from lrputils import stats
from lrputils.model.attention import AttentionCall, additive, fused
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.operations import routed
from lrputils.removal.mask_gradient import Gates, block_scores

_ROWS = 512  # in one forward pass


@in_batches("id", "tokens")
def agreement_by_depth(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    forms: tuple[str, ...] = ("exact-block", "first-order"),
) -> Iterator[dict[str, Any]]:
    """Return a row a text, form of the estimate and number of gated layers; long texts are cut.

    With k layers gated, exact leave-one-out hides a token's key in those layers alone, and the mask
    gradient is the sum of those layers' shares. So the same model serves at every depth.

    Returns:
        `id`, `tokens`, `form`, `k` (the last k layers are gated); over all tokens and over the
        text's own (`_content`): `r`, `spearman`, and `error`, Σ|estimate − LOO| / Σ|LOO|.
    """
    depth = classifier.architecture.layers
    estimates = {}  # form → each layer's share with all gates open, (layers, batch, tokens)
    for form in forms:
        gates, architecture = Gates(form), classifier.architecture
        with torch.inference_mode(False), routed(architecture, gates) as route:
            estimates[form] = block_scores(route, architecture, inputs, target, gates)
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


def _hidden_from(layer: int, keys: Tensor, call: AttentionCall) -> tuple[Tensor, None]:
    """Attention in which no query sees the `keys`, boolean (rows, tokens), from `layer` on.

    Layers count from 0. From layer 0 on this is leave-one-out's removal by the attention mask.
    """
    if call.layer < layer:
        return fused(call)
    dtype = call.query.dtype
    hidden = torch.where(keys, torch.finfo(dtype).min / 2, 0.0)[:, None, None].to(dtype)
    return fused(replace(call, mask=additive(call.mask, dtype) + hidden))


@torch.inference_mode()
def losses(classifier: Classifier, ids: Tensor, target: int, layer: int, keys: Tensor) -> Tensor:
    """f(x) − f(x with a row's keys hidden from `layer` on), (rows,), of one text's `ids` (tokens,).

    A hidden token's own query stays; in an encoder nobody reads it but the head.
    """
    found = []
    for part in torch.cat([torch.zeros_like(keys[:1]), keys]).split(_ROWS):
        rows = ids.expand(len(part), -1)
        with routed(classifier.model, partial(_hidden_from, layer, part)):
            logits = classifier.model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits
        found.append(logits[:, target])
    values = torch.cat(found)
    return values[0] - values[1:]
