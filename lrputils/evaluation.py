"""A data set through the methods: every text's maps, and how each map compares with exact LOO.

Texts of similar length share a batch. Everything that a table or a figure needs afterwards is in
the rows; the maps are kept for looking at single texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from lrputils.readout import READOUTS

REFERENCE = "loo"


@dataclass(frozen=True)
class Variant:
    """A method with options of its own, under a name of its own."""

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """What evaluating methods on texts gave.

    Attributes:
        rows: one row a text and method, columns `id`, `method`, `tokens` (special ones included),
            `target` (the class explained), `label` (the text's own class, None if it has none),
            `logit` (of the target), `r` (Pearson with LOO over all tokens), `r_content` (without
            special tokens), `r_normalised` (after dividing each map by its sum, as the paper does)
            and `flipped` (the map's own sum was negative: the division turned its signs round).
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

    def accuracy(self) -> float | None:
        """Return the share of texts whose predicted class is their label.

        None where a text has no label, or one that is no class of the model.
        """
        texts = self.rows.drop_duplicates("position")
        if texts.label.isna().any():
            return None
        return float((texts.target == texts.label).mean())

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
    methods: Sequence[str | Variant] = ("loo", "ig", "rollout", "attnlrp", "cp-lrp"),
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    reference: Evaluation | None = None,
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
        methods: names from `METHODS`, or `Variant` values; "loo" is computed in any case, as what
            the rest is held to.
        options: options of the methods given by name.
        reference: an evaluation of the same texts by the same classifier, whose LOO is taken.
        batch_size: texts a batch.
        max_length: longest text allowed, in tokens; the model's own limit if not given.
        truncate: cut longer texts instead of refusing them.
        progress: whether to draw a progress bar.

    Raises:
        ValueError: an unknown method, no texts, or a text that cannot be encoded.
    """
    variants = _variants(methods, options or {})
    if not len(texts):
        raise ValueError("there are no texts to evaluate on")
    if reference is not None and len(reference.tokens) != len(texts):
        raise ValueError(
            f"the reference evaluated {len(reference.tokens)} texts, but there are {len(texts)}"
        )
    lengths = [len(text) for text in texts]
    order = sorted(range(len(texts)), key=lengths.__getitem__)
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    found: dict[int, dict[str, Any]] = {}
    for batch in tqdm(batches, desc="texts", unit="batch", disable=None if progress else True):
        inputs = classifier.encode(
            [texts[row] for row in batch], max_length=max_length, truncate=truncate
        )
        known = None if reference is None else [reference.maps[REFERENCE][row] for row in batch]
        for row, result in zip(batch, _batch(classifier, inputs, variants, known), strict=True):
            found[row] = result
    names = [variant.name for variant in variants]
    return _collect(
        [found[row] for row in range(len(texts))], texts, names, classifier.class_numbers
    )


def at_every_readout(*methods: str) -> list[Variant]:
    """Return each method at each read-out, named `method @ read-out`."""
    return [
        Variant(f"{method} @ {readout}", method, {"readout": readout})
        for method in methods
        for readout in READOUTS
    ]


def _variants(
    methods: Sequence[str | Variant], options: Mapping[str, Mapping[str, Any]]
) -> list[Variant]:
    """Return the variants to run, the reference first, each name once."""
    asked = [
        method if isinstance(method, Variant) else Variant(method, method, options.get(method, {}))
        for method in (REFERENCE, *methods)
    ]
    unknown = [variant.method for variant in asked if variant.method not in METHODS]
    stray = [name for name in options if name not in {variant.name for variant in asked}]
    if unknown or stray:
        raise ValueError(f"unknown method(s) {unknown or stray}; choose from {list(METHODS)}")
    return list({variant.name: variant for variant in asked}.values())


def _batch(
    classifier: Classifier,
    inputs: Inputs,
    variants: Sequence[Variant],
    known: Sequence[np.ndarray] | None,
) -> list[dict[str, Any]]:
    """Return each text's maps, comparisons, tokens and prediction."""
    model = classifier.model
    with torch.inference_mode():
        logits = model(**inputs.model_kwargs()).logits
    target = logits.argmax(dim=-1)
    maps = {} if known is None else {REFERENCE: _padded(known, inputs.input_ids.shape[1])}
    for variant in variants:
        if variant.name not in maps:
            scores = attribute(model, inputs, variant.method, target=target, **variant.options)
            maps[variant.name] = scores.cpu()
    compared = {name: _compare(scores, maps[REFERENCE], inputs) for name, scores in maps.items()}
    content = inputs.content_mask.cpu().numpy()
    return [
        {
            "target": int(target[row]),
            "logit": float(logits[row, target[row]]),
            "tokens": inputs.tokens[row],
            "content": content[row, :length],
            "maps": {name: scores[row, :length].numpy() for name, scores in maps.items()},
            "compared": {
                name: {column: values[row] for column, values in columns.items()}
                for name, columns in compared.items()
            },
        }
        for row, length in enumerate(inputs.lengths.tolist())
    ]


def _padded(maps: Sequence[np.ndarray], width: int) -> torch.Tensor:
    scores = torch.zeros(len(maps), width)
    for row, values in enumerate(maps):
        scores[row, : len(values)] = torch.from_numpy(values)
    return scores


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
    results: Sequence[Mapping[str, Any]],
    texts: Texts | Sequence[str],
    methods: Sequence[str],
    class_numbers: Mapping[int | str, int],
) -> Evaluation:
    ids = texts.ids if isinstance(texts, Texts) else tuple(map(str, range(len(texts))))
    labels = texts.labels if isinstance(texts, Texts) and texts.labels else [None] * len(texts)
    rows = [
        {
            "position": position,
            "id": ids[position],
            "method": method,
            "tokens": len(result["tokens"]),
            "target": result["target"],
            "label": class_numbers.get(labels[position]),
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
