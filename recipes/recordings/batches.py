"""What is recorded a batch of texts at a time: `remedy`, `units`, `uniform`, `depth`, `ceiling` and
`layer_pairs`.

A ceiling: how far LOO agrees with itself when an edit leaves the meaning as it is. Three edits of a
sentence that no reader would read otherwise; LOO of the edited text explains the class predicted on
the original one, and tokens that both texts share are compared.

Where tokens interact: exact leave-two-out with the pair hidden from layer l on. I_ij(l) = LOO_ij −
LOO_i − LOO_j, each with the keys hidden in layers l to the last, exact. What I_ij(l) − I_ij(l + 1)
holds is what layer l adds to the interaction of i and j.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, Recorder, additive, fused, routed
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.model.units import UNITS
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import Gates, block_scores
from lrputils.study.attention import uniform_attention
from lrputils.study.by_text import in_batches, in_order, predicted
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
    estimates = {}  # form → each layer's share with all gates open, (layers, batch, tokens)
    for form in forms:
        gates = Gates(form)
        with torch.inference_mode(False), routed(classifier.model, blocks := Recorder(gates)):
            reading = read(classifier.architecture, inputs, target=target)
        gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
        estimates[form] = block_scores(reading, blocks.calls, gradients, gates)
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


EDITS: dict[str, Callable[[str], str]] = {
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
        for name, edit in EDITS.items():
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


_ROWS = 512  # in one forward pass


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
