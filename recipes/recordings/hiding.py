"""Hide tokens' keys from some layers on: exact removal in a part of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from lrputils.model.attention import AttentionCall, additive, fused, routed
from lrputils.model.classifier import Classifier

_ROWS = 512  # in one forward pass


@contextmanager
def hidden_from(classifier: Classifier, layer: int, keys: Tensor) -> Iterator[None]:
    """Inside the block no query sees the `keys`, boolean (rows, tokens), in layers from `layer` on.

    Layers count from 0. From layer 0 on this is leave-one-out's removal by the attention mask.
    """

    def function(call: AttentionCall) -> tuple[Tensor, None]:
        if call.layer < layer:
            return fused(call)
        dtype = call.query.dtype
        hidden = torch.where(keys, torch.finfo(dtype).min / 2, 0.0)[:, None, None].to(dtype)
        return fused(replace(call, mask=additive(call.mask, dtype) + hidden))

    with routed(classifier.model, function):
        yield


@torch.inference_mode()
def losses(classifier: Classifier, ids: Tensor, target: int, layer: int, keys: Tensor) -> Tensor:
    """f(x) − f(x with a row's keys hidden from `layer` on), (rows,), of one text's `ids` (tokens,).

    A hidden token's own query stays; in an encoder nobody reads it but the head.
    """
    found = []
    for part in torch.cat([torch.zeros_like(keys[:1]), keys]).split(_ROWS):
        rows = ids.expand(len(part), -1)
        with hidden_from(classifier, layer, part):
            logits = classifier.model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits
        found.append(logits[:, target])
    values = torch.cat(found)
    return values[0] - values[1:]
