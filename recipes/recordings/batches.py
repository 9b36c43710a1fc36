"""What is recorded a batch of texts at a time: `remedy`, `units`, `uniform` and `layer_pairs`.

Where tokens interact: exact leave-two-out with the pair hidden from layer l on. I_ij(l) = LOO_ij −
LOO_i − LOO_j, each with the keys hidden in layers l to the last, exact. What I_ij(l) − I_ij(l + 1)
holds is what layer l adds to the interaction of i and j.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.attention import uniform_attention
from lrputils.study.by_text import in_batches, in_order, predicted
from lrputils.study.depth import losses
from lrputils.study.variants import passes

# Options of `mask_gradient` by the name of the setting.
SETTINGS: dict[str, dict[str, Any]] = {
    "one-pass": {},
    "first-order": {"form": "first-order"},
    "halves": {"groups": 2},
    "quarters": {"groups": 4},
    "eighths": {"groups": 8},
}
EXACT = "loo"


@in_batches("id", "target", "label", "content")
def remedy(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    settings: Sequence[str] = tuple(SETTINGS),
) -> Iterator[dict[str, Any]]:
    """Return every text's map under each setting, the predicted class explained.

    Cost is counted in forward passes of one text, a backward pass as two, and measured in processor
    seconds.

    `settings` are names from `SETTINGS`, and "loo" for leave-one-out itself; longer texts are cut.

    Returns:
        one row a text and setting: `id`, `target`, `label`, `content`, `setting`, `passes`,
        `seconds` (of the processor, the batch's shared among its texts by their tokens), `scores`.
    """
    strays = [name for name in settings if name not in (*SETTINGS, EXACT)]
    if strays or not settings:
        raise ValueError(f"unknown setting(s) {strays or ''}; choose from {[*SETTINGS, EXACT]}")
    lengths = inputs.lengths.tolist()
    for name in settings:
        exact = name == EXACT
        options = {"progress": False} if exact else SETTINGS[name]
        method = EXACT if exact else "mask-gradient"
        began = time.process_time()
        scores = attribute(classifier.model, inputs, method, target=target, **options)
        seconds = (time.process_time() - began) / sum(lengths)
        yield {
            "setting": name,
            "passes": lengths if exact else passes(options),
            "seconds": [round(seconds * length, 4) for length in lengths],
            "scores": scores,
        }


PLACES = {
    "attnlrp": ("word", "sum"),
    "cp-lrp": ("word", "sum"),
    "grad-x-input": ("",),
    "ig": ("",),
    "mask-gradient": ("",),
}


KINDS = "token", "word", "sentence"


@in_batches("id", "label", "target")
def units(
    classifier: Classifier, inputs: Inputs, target: Tensor, *, kinds: Sequence[str] = KINDS
) -> Iterator[dict[str, Any]]:
    """Return a row a text, kind of units, method and read-out; sentences alone need few passes.

    A unit's LOO removes all of its tokens at once; of other maps its tokens' scores are added up.
    The method "loo of tokens" is that sum for LOO itself: what is lost where tokens go one at a
    time.

    Returns:
        `id`, `label`, `target`, `units`, `method`, `readout`, `count` (of its units); `r` and
        `spearman` with LOO over the units; `several`, how many units have more than one token,
        and `flipped`, in how many of these the map's sign is not LOO's.
    """
    maps = {}
    if "token" in kinds:
        maps["loo of tokens", ""] = leave_one_out(classifier, inputs, target=target, progress=False)
    for method, places in PLACES.items():
        for place in places:
            options = {"readout": place} if place else {}
            maps[method, place] = attribute(classifier, inputs, method, target=target, **options)
    for units in kinds:
        over = inputs.units(units)
        loo = leave_one_out(classifier, inputs, target=target, units=units, progress=False)
        tokens = over.sum(torch.ones_like(loo))
        where = over.mask
        for (method, place), scores in maps.items():
            scores = over.sum(scores.to(loo))
            other = where & (tokens > 1) & (scores.sign() != loo.sign())
            yield {
                "units": units,
                "method": method,
                "readout": place,
                "count": where.sum(1),
                "r": stats.pearson(scores, loo, where=where),
                "spearman": stats.spearman(scores, loo, where=where),
                "several": (where & (tokens > 1)).sum(1),
                "flipped": other.sum(1),
            }


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
