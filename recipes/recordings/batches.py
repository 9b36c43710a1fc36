"""What is recorded a batch of texts at a time: kinds `remedy`, `units`, `uniform` and `depth`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.attention import Recorder, routed
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.model.units import UNITS
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import Gates, block_scores
from lrputils.study.attention import uniform_attention
from lrputils.study.by_text import in_batches
from lrputils.study.variants import passes
from recipes.recordings.removals import losses

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


@in_batches("id", "label", "target")
def units(
    classifier: Classifier, inputs: Inputs, target: Tensor, *, kinds: Sequence[str] = UNITS
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
    how = {"target": target}
    maps = {}
    if "token" in kinds:
        maps["loo of tokens", ""] = leave_one_out(classifier, inputs, **how, progress=False)
    for method, places in PLACES.items():
        for place in places:
            options = {"readout": place} if place else {}
            maps[method, place] = attribute(classifier, inputs, method, **how, **options)
    for units in kinds:
        over = inputs.units(units)
        loo = leave_one_out(classifier, inputs, **how, units=units, progress=False)
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


@in_batches("id", "tokens")
def depth(
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
