"""A data set through the methods: every text's maps, and how each map compares with exact LOO.

Texts of similar length share a batch. Everything that a table or a figure needs afterwards is in
the rows; the maps are kept for looking at single texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lrputils import stats
from lrputils.attribution import METHODS, attribute
from lrputils.data.texts import Texts
from lrputils.inputs import Inputs
from lrputils.models import Classifier

REFERENCE = "loo"


@dataclass(frozen=True)
class Evaluation:
    """What evaluating methods on texts gave.

    Attributes:
        rows: one row a text and method, columns `id`, `method`, `tokens` (special ones included),
            `target` (the class explained), `logit` (of that class), `r` (Pearson with LOO over all
            tokens), `r_content` (without special tokens), `r_normalised` (after dividing each map
            by its sum, as the paper does) and `flipped` (the map's own sum was negative, so that
            the division turned its signs round).
        maps: method → one float32 array (tokens,) a text, in the order of the texts.
        tokens: the strings of each text's tokens, special ones included.
        content: boolean (tokens,) a text, false at special tokens.
    """

    rows: pd.DataFrame
    maps: Mapping[str, tuple[np.ndarray, ...]]
    tokens: tuple[tuple[str, ...], ...]
    content: tuple[np.ndarray, ...]

    def per_text(self, column: str = "r") -> pd.DataFrame:
        """Return one column of the rows as (text, method), texts and methods in their order."""
        wide = self.rows.pivot(index="position", columns="method", values=column)
        return wide[list(self.maps)]

    def summary(self, column: str = "r", **options: Any) -> pd.DataFrame:
        """Return the mean of a column for each method, with its bootstrap interval.

        Columns `mean`, `low`, `high`, `texts`, `undefined` (constant maps, left out); `options`
        are those of `lrputils.stats.bootstrap_interval`.
        """
        wide = self.per_text(column)
        estimates = {method: stats.estimate(wide[method], **options) for method in wide}
        frame = pd.DataFrame.from_dict(estimates, orient="index")
        frame.columns = ["mean", "low", "high", "texts", "undefined"]
        return frame


def evaluate(
    classifier: Classifier,
    texts: Texts | Sequence[str],
    methods: Sequence[str] = ("loo", "ig", "rollout", "attnlrp", "cp-lrp"),
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
    truncate: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Run every method on every text and compare each map with exact LOO.

    The class explained is the one predicted on the whole text.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer, or plain strings.
        methods: names from `METHODS`; "loo" is computed in any case, as what the rest is held to.
        options: options of single methods, by method name.
        batch_size: texts a batch.
        max_length: longest text allowed, in tokens; the model's own limit if not given.
        truncate: cut longer texts instead of refusing them.
        progress: whether to draw a progress bar.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    methods = _with_reference(methods)
    if not len(texts):
        raise ValueError("there are no texts to evaluate on")
    options = options or {}
    lengths = [len(text) for text in texts]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    found: dict[int, dict[str, Any]] = {}
    for batch in tqdm(batches, desc="texts", unit="batch", disable=None if progress else True):
        inputs = classifier.encode(
            [texts[row] for row in batch], max_length=max_length, truncate=truncate
        )
        for row, result in zip(batch, _batch(classifier, inputs, methods, options), strict=True):
            found[row] = result
    ids = texts.ids if isinstance(texts, Texts) else tuple(map(str, range(len(texts))))
    return _collect([found[row] for row in range(len(texts))], ids, methods)


def _with_reference(methods: Sequence[str]) -> tuple[str, ...]:
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise ValueError(f"unknown method(s) {unknown}; choose from {list(METHODS)}")
    return tuple(dict.fromkeys((REFERENCE, *methods)))


def _batch(
    classifier: Classifier,
    inputs: Inputs,
    methods: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return each text's maps, comparisons, tokens and prediction."""
    with torch.inference_mode():
        logits = classifier.model(**inputs.model_kwargs()).logits
    target = logits.argmax(dim=-1)
    maps = {
        name: attribute(
            classifier.model, inputs, name, target=target, **options.get(name, {})
        ).cpu()
        for name in methods
    }
    compared = {name: _compare(scores, maps[REFERENCE], inputs) for name, scores in maps.items()}
    lengths = inputs.lengths.tolist()
    return [
        {
            "target": int(target[row]),
            "logit": float(logits[row, target[row]]),
            "tokens": inputs.tokens[row],
            "content": inputs.content_mask[row, :length].cpu().numpy(),
            "maps": {name: scores[row, :length].numpy() for name, scores in maps.items()},
            "compared": {
                name: {column: values[row] for column, values in columns.items()}
                for name, columns in compared.items()
            },
        }
        for row, length in enumerate(lengths)
    ]


def _compare(scores: torch.Tensor, loo: torch.Tensor, inputs: Inputs) -> dict[str, np.ndarray]:
    valid, content = inputs.valid_mask.cpu(), inputs.content_mask.cpu()
    ours, theirs = stats.sum_to_one(scores, valid), stats.sum_to_one(loo, valid)
    usable = ~(np.isnan(ours.scores).any(axis=1) | np.isnan(theirs.scores).any(axis=1))
    r = stats.pearson(scores, loo, where=valid)
    normalised = stats.pearson(
        np.nan_to_num(ours.scores), np.nan_to_num(theirs.scores), where=valid
    )
    return {
        "r": r,
        "r_content": stats.pearson(scores, loo, where=content),
        "r_normalised": np.where(usable, normalised, np.nan),
        "flipped": ours.flipped,
    }


def _collect(
    results: Sequence[Mapping[str, Any]], ids: Sequence[str], methods: Sequence[str]
) -> Evaluation:
    rows = [
        {
            "position": position,
            "id": ids[position],
            "method": method,
            "tokens": len(result["tokens"]),
            "target": result["target"],
            "logit": result["logit"],
            **result["compared"][method],
        }
        for position, result in enumerate(results)
        for method in methods
    ]
    return Evaluation(
        rows=pd.DataFrame(rows),
        maps={m: tuple(result["maps"][m] for result in results) for m in methods},
        tokens=tuple(result["tokens"] for result in results),
        content=tuple(result["content"] for result in results),
    )
