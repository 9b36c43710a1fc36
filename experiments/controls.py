"""A control of a comparison with leave-one-out: what agrees though nothing was learned."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import torch
from torch import nn

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.proof import laid_out
from lrputils.study.evaluation import evaluate

_RANDOMISED = ("loo", "mask-gradient", "attnlrp", "cp-lrp", "grad-x-input")


def random_weights(
    classifier: Classifier,
    texts: Texts,
    *,
    seed: int = 0,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, stage of randomisation and method; longer texts are cut.

    The weights are drawn anew from the head downwards (the cascading randomisation of Adebayo et
    al., 2018), and each method is held against exact LOO of the randomised model itself.

    Returns:
        `id`, `randomised` (what is: "" nothing, then the head and ever lower layers too), `method`;
        `r`, `r_content` and `spearman_content` with LOO of the same weights; `similarity`, |r| of
        the map with the trained model's over all tokens, each explaining its own prediction.
    """
    parts, trained = [], None
    for stage, model in _stages(classifier, seed):
        how = {"batch_size": batch_size, "max_length": max_length, "truncate": True}
        found = evaluate(model, texts, _RANDOMISED, progress=False, **how)
        trained = trained or found
        rows = found.rows
        exact, before = found.maps["loo"], trained.maps
        columns = {
            "spearman_content": [
                stats.spearman(row.scores, exact[row.position], row.content)[0]
                for row in rows.itertuples()
            ],
            "similarity": [
                abs(stats.pearson(row.scores, before[row.method][row.position])[0])
                for row in rows.itertuples()
            ],
        }
        parts.append(rows.assign(randomised=stage, **columns))
    rows = pd.concat(parts).sort_values("position", kind="stable")
    return rows[["id", "randomised", "method", "r", "r_content", "spearman_content", "similarity"]]


def _stages(classifier: Classifier, seed: int) -> Iterator[tuple[str, Classifier]]:
    """Yield the trained classifier, then copies whose head, upper and all layers are random."""
    yield "", classifier
    model, random = copy.deepcopy(classifier.model), torch.Generator().manual_seed(seed)
    copied = replace(classifier, model=model)
    blocks, half = laid_out(copied).blocks, classifier.architecture.layers // 2
    inside = {id(m) for m in copied.architecture.backbone.modules()}
    pooler = getattr(copied.architecture.backbone, "pooler", None)
    head = [m for m in model.modules() if id(m) not in inside] + [
        *(pooler or nn.Module()).modules()
    ]
    for stage, parts in (
        ("head", head),
        (
            f"head, layers {half + 1}-{len(blocks)}",
            [m for block in blocks[half:] for m in block.modules()],
        ),
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
