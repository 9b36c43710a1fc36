"""What is recorded of exact removal itself: kinds `ceiling` and `layer_pairs`.

A ceiling: how far LOO agrees with itself when an edit leaves the meaning as it is. Three edits of a
sentence that no reader would read otherwise; LOO of the edited text explains the class predicted on
the original one, and tokens that both texts share are compared.

Where tokens interact: exact leave-two-out with the pair hidden from layer l on. I_ij(l) = LOO_ij −
LOO_i − LOO_j, each with the keys hidden in layers l to the last, exact. What I_ij(l) − I_ij(l + 1)
holds is what layer l adds to the interaction of i and j.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, additive, fused, routed
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.by_text import in_order, predicted

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
                single, both = lost[: len(ids)], lost[len(ids) :]
                one, other = single[pairs[:, 0]], single[pairs[:, 1]]
                told = {"position": row["position"], "id": row["id"], "layer": layer + 1}
                rows.append(
                    pd.DataFrame(
                        {
                            **told,
                            "i": pairs[:, 0],
                            "j": pairs[:, 1],
                            "interaction": both - one - other,
                            "loo_i": one,
                            "loo_j": other,
                        }
                    )
                )
    return in_order(pd.concat(rows).to_dict("records"))


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
