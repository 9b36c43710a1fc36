"""What layers do: with uniform attention in some of them, and to pairs of tokens.

Where tokens interact: exact leave-two-out with the pair hidden from layer l on. I_ij(l) = LOO_ij −
LOO_i − LOO_j, each with the keys hidden in layers l to the last, exact. What I_ij(l) − I_ij(l + 1)
holds is what layer l adds to the interaction of i and j.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.attention import uniform_attention
from experiments.by_text import in_batches, in_order
from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, additive, fused
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.model.operations import routed
from lrputils.study.by_text import predicted

_ROWS = 512  # in one forward pass


@in_batches("id", "label", "target")
def uniform(classifier: Classifier, inputs: Inputs, target: Tensor) -> Iterator[dict[str, Any]]:
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


def layer_pairs(
    classifier: Classifier,
    texts: Texts,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, layer (from 1) and pair i < j of the text's own tokens.

    Returns:
        `id`, `layer`, `i` and `j` (their place in the text), `interaction`, `loo_i`, `loo_j`.
    """
    rows = []
    for inputs, _, of_texts in predicted(classifier, texts, batch_size, max_length):
        for number, row in enumerate(of_texts):
            ids = inputs["input_ids"][number, : len(row["content"])]
            own = torch.from_numpy(row["content"]).nonzero()[:, 0]
            pairs = torch.combinations(own)
            singles = torch.eye(len(ids), dtype=torch.bool)
            keys = torch.cat([singles, singles[pairs[:, 0]] | singles[pairs[:, 1]]]).to(ids.device)
            for layer in range(classifier.architecture.layers):
                lost = losses(classifier, ids, row["target"], layer, keys).cpu()
                one, other = lost[pairs[:, 0]], lost[pairs[:, 1]]
                rows.append(
                    pd.DataFrame(
                        {
                            "position": row["position"],
                            "id": row["id"],
                            "layer": layer + 1,
                            "i": pairs[:, 0],
                            "j": pairs[:, 1],
                            "interaction": lost[len(ids) :] - one - other,
                            "loo_i": one,
                            "loo_j": other,
                        }
                    )
                )
    return in_order(pd.concat(rows).to_dict("records"))


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
