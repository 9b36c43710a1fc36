"""Two controls of a comparison with leave-one-out: its ceiling, and random weights.

A ceiling: how far LOO agrees with itself when an edit leaves the meaning as it is. Three edits of a
sentence that no reader would read otherwise; LOO of the edited text explains the class predicted on
the original one, and tokens that both texts share are compared.

Random weights: what agrees with LOO although nothing was learned.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np
import pandas as pd
import torch
from torch import nn

from experiments.by_text import in_order
from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.by_text import predicted
from lrputils.study.evaluation import evaluate

_LONG_FORMS = (
    (r"\b(can) ?n't\b|\bca n't\b", "can not"),
    (r"\bwo n't\b|\bwon't\b", "will not"),
    (r" ?n't\b", " not"),
    (r" ?'re\b", " are"),
    (r" ?'ve\b", " have"),
    (r" ?'ll\b", " will"),
    (r"\b(it|that|there|he|she|what) 's\b", r"\1 is"),
)


def _full_stop(text: str) -> str:
    stripped = text.rstrip()
    return stripped[:-1].rstrip() if stripped.endswith(".") else f"{stripped} ."


def _long_forms(text: str) -> str:
    for short, long in _LONG_FORMS:
        text = re.sub(short, long, text)
    return text


_EDITS: dict[str, Callable[[str], str]] = {
    "full stop": _full_stop,  # taken away, or added
    "long forms": _long_forms,  # "isn't" → "is not"
    "opening": lambda text: f"overall , {text}",
}


def ceiling(
    classifier: Classifier,
    texts: Texts,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text and edit that changes it; longer texts are cut.

    Returns:
        `id`, `edit`, `tokens` (compared: the text's own that both share), `r` and `spearman` of the
        two LOO maps, `error` Σ|difference| / Σ|LOO|, and `change` of the explained logit.
    """
    rows = []
    for whole, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        how = {"target": target, "progress": False}
        loo = leave_one_out(classifier.model, whole, **how).cpu().numpy()
        for name, edit in _EDITS.items():
            changed = [edit(texts[row["position"]]) for row in of_texts]
            inputs = classifier.encode(changed, max_length, truncate=True)
            other = leave_one_out(classifier.model, inputs, **how).cpu().numpy()
            with torch.inference_mode():
                after = run(classifier.architecture, classifier.architecture.arguments(inputs))
            for number, row in enumerate(of_texts):
                if changed[number] == texts[row["position"]]:
                    continue
                ours, theirs = _shared(whole, inputs, number)
                a, b = loo[number][ours], other[number][theirs]
                rows.append(
                    {
                        "position": row["position"],
                        "id": row["id"],
                        "edit": name,
                        "tokens": len(ours),
                        "r": float(stats.pearson(a, b)[0]),
                        "spearman": float(stats.spearman(a, b)[0]),
                        "error": float(np.abs(a - b).sum() / np.abs(a).sum()),
                        "change": float(after[number, row["target"]]) - row["logit"],
                    }
                )
    return in_order(rows)


def _shared(one: Inputs, other: Inputs, row: int) -> tuple[list[int], list[int]]:
    """Columns of the texts' own tokens that stand in both, in order."""
    content = [
        np.flatnonzero(each.content_mask[row].cpu().numpy()[: int(each.lengths[row])])
        for each in (one, other)
    ]
    ids = [
        each["input_ids"][row].cpu().numpy()[c]
        for each, c in zip((one, other), content, strict=True)
    ]
    ours, theirs = [], []
    for block in SequenceMatcher(None, *map(list, ids), autojunk=False).get_matching_blocks():
        ours += content[0][block.a : block.a + block.size].tolist()
        theirs += content[1][block.b : block.b + block.size].tolist()
    return ours, theirs


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
        of = [*zip(rows.method, rows.position, strict=True)]
        columns = {
            "spearman_content": [
                stats.spearman(found.maps[m][i], found.maps["loo"][i], found.content[i])[0]
                for m, i in of
            ],
            "similarity": [
                abs(stats.pearson(found.maps[m][i], trained.maps[m][i])[0]) for m, i in of
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
    blocks, half = copied.architecture.blocks, classifier.architecture.layers // 2
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
