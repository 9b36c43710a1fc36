"""A control: does agreement with LOO reward what the model has learned?

The weights are drawn anew from the head downwards (the cascading randomisation of Adebayo et al.,
2018), and each method is held against exact LOO of the randomised model itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.study.by_text import in_order, predicted

METHODS = ("loo", "mask-gradient", "attnlrp", "cp-lrp", "grad-x-input")


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    seed: int = 0,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, stage of randomisation and method; longer texts are cut.

    Returns:
        `id`, `randomised` (what is: "" nothing, then the head and ever lower layers too), `method`;
        `r`, `r_content` and `spearman_content` with LOO of the same weights; `similarity`, |r| of
        the map with the trained model's over all tokens, each explaining its own prediction.
    """
    rows = []
    for stage, model in stages(classifier, seed):
        for inputs, target, of_texts in predicted(model, texts, batch_size, max_length):
            maps = _maps(model, inputs, target)
            trained = maps if not stage else _maps(classifier, inputs, None)
            where = {"": inputs.valid_mask.cpu(), "_content": inputs.content_mask.cpu()}
            for method, scores in maps.items():
                columns = {
                    f"r{suffix}": stats.pearson(scores, maps["loo"], where=mask)
                    for suffix, mask in where.items()
                }
                columns["spearman_content"] = stats.spearman(
                    scores, maps["loo"], where=where["_content"]
                )
                columns["similarity"] = np.abs(
                    stats.pearson(scores, trained[method], where=where[""])
                )
                for number, row in enumerate(of_texts):
                    told = {"position": row["position"], "id": row["id"]}
                    told |= {"randomised": stage, "method": method}
                    rows.append(told | {name: v[number] for name, v in columns.items()})
    return in_order(rows)


def _maps(classifier: Classifier, inputs: Inputs, target: Tensor | None) -> dict[str, Tensor]:
    how = {"loo": {"progress": False}}
    return {
        name: attribute(classifier.model, inputs, name, target=target, **how.get(name, {}))
        .float()
        .cpu()
        for name in METHODS
    }


def stages(classifier: Classifier, seed: int) -> Iterator[tuple[str, Classifier]]:
    """Yield the trained classifier, then copies whose head, upper and all layers are random."""
    yield "", classifier
    architecture = classifier.architecture
    model, random = copy.deepcopy(classifier.model), torch.Generator().manual_seed(seed)
    copied = replace(classifier, model=model)
    blocks, half = copied.architecture.blocks, architecture.layers // 2
    inside = {id(m) for m in copied.architecture.backbone.modules()}
    pooler = getattr(copied.architecture.backbone, "pooler", None)
    head = [m for m in model.modules() if id(m) not in inside] + [
        *(pooler or nn.Module()).modules()
    ]
    upper = f"head, layers {half + 1}-{len(blocks)}"
    for stage, parts in (
        ("head", head),
        (upper, [m for block in blocks[half:] for m in block.modules()]),
        ("head, all layers", [m for block in blocks[:half] for m in block.modules()]),
    ):
        for module in parts:
            _draw(module, random)
        yield stage, copied


@torch.no_grad()
def _draw(module: nn.Module, random: torch.Generator, spread: float = 0.02) -> None:
    """Initialise a module as BERT does: weights N(0, .02²), biases 0, norms 1 and 0."""
    if isinstance(module, nn.Linear):
        drawn = torch.randn(module.weight.shape, generator=random) * spread
        module.weight.copy_(drawn)
        if module.bias is not None:
            module.bias.zero_()
    elif isinstance(module, nn.LayerNorm):
        module.weight.fill_(1)
        module.bias.zero_()
