"""Evaluation of texts a batch at a time: the step that any engine can map over a data set.

`lrputils evaluate` maps it over shards; Ray Data, or another engine with workers that keep a model,
can do the same over a cluster (`pip install 'lrputils[ray]'`):

    import ray
    from lrputils.study.batches import BatchEvaluator

    texts = ray.data.read_parquet("reviews.parquet")
    step = {"model": "folder-or-hub-name", "methods": ["attnlrp", "cp-lrp"]}
    rows = texts.map_batches(
        BatchEvaluator, fn_constructor_kwargs=step, batch_size=64, concurrency=2
    )
    rows.write_parquet("rows")

It reads and writes nothing, and knows nothing of shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.data.texts import Texts
from lrputils.model.architectures import describe
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.readout import resolve_target
from lrputils.model.units import check_units
from lrputils.removal.certified import check_options
from lrputils.study.evaluation import REFERENCE, evaluate, of_label
from lrputils.study.variants import Label, LayerSweep, Variant


class BatchEvaluator:
    """Every method's map of every text of a batch, and how it agrees with exact leave-one-out."""

    def __init__(
        self,
        model: str | Path | Classifier | None = None,
        methods: Sequence[str | Variant | LayerSweep] = ("attnlrp", "cp-lrp"),
        *,
        target: int | str | None = None,
        units: str = "token",
        max_length: int | None = None,
        truncate: bool = True,
        batch_size: int = 16,
        precision: str = "float32",
        tolerance: float = 0.002,
        device: str = "auto",
    ) -> None:
        """Load the model, as `load_classifier` takes it, once for all batches.

        "loo" is always among the `methods`; the predicted class is explained unless a `target`, a
        number or a label, is given; longer texts are cut at `max_length` if `truncate`; `units` are
        those of `lrputils.evaluate`, `precision` and `tolerance` those of `lrputils.certified_loo`.
        ValueError for an unknown method or class, TypeError for one whose rules do not cover the
        model, and what `load_classifier` raises.
        """
        names = [method for method in methods if isinstance(method, str)]
        if unknown := [name for name in names if name not in METHODS]:
            raise ValueError(f"unknown method(s) {unknown}; choose from {list(METHODS)}")
        loaded = isinstance(model, Classifier)
        self.classifier = model if loaded else load_classifier(model, device=device)
        if any(METHODS[name].rules for name in names):
            describe(self.classifier)
        self.methods = (REFERENCE, *(method for method in methods if method != REFERENCE))
        self.options: dict[str, Any] = {}
        resolve_target(target, self._no_logits(), self.classifier.model)
        self._how = {"max_length": max_length, "truncate": truncate, "batch_size": batch_size}
        self._how |= {"target": target, "units": units}
        check_units(units)
        if precision != "float32":
            loo = {"precision": precision, "tolerance": tolerance}
            check_options(self.classifier.architecture, **loo)
            self.options = {REFERENCE: loo}

    def _no_logits(self) -> Tensor:
        return torch.zeros(1, len(self.classifier.labels) or len(self.classifier.tokenizer))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluate columns `text` and, if there are any, `id` and `label`; return those of `rows`.

        Raises:
            ValueError: no column `text`, a text that cannot be encoded, or a model that returns
                NaN; the message names the text by its `id`.
        """
        if "text" not in batch:
            raise ValueError(f"a batch needs a column 'text'; there are {list(batch)}")
        known = [name for name in ("text", "id", "label") if name in batch]
        columns = {name: pd.Series(batch[name]).tolist() for name in known}
        texts = columns["text"]
        ids = map(str, columns.get("id", range(len(texts))))
        labels = tuple(columns["label"]) if "label" in columns else None
        rows = self.rows(Texts(tuple(texts), labels, tuple(ids), "a batch", ""))
        return {name: rows[name].tolist() for name in rows}

    def rows(self, texts: Texts) -> pd.DataFrame:
        """Evaluate texts: a row a text and method.

        Columns are those of `lrputils.study.evaluation.Evaluation.rows` but `position`, and
        `spearman` (with leave-one-out, over all tokens), `cut` (the text was longer than
        `max_length`), `scores` (tokens,), `pieces` (the tokens' strings) and `content` (false at
        special tokens; of words or sentences true at first tokens); an ablation has none of the
        last three.
        """
        how = {"options": self.options, **self._how}
        found = evaluate(self.classifier, texts, self.methods, **how, progress=False)
        limits = {"truncate": True, "max_length": self._how["max_length"]}
        cut = set(self.classifier.encode(texts, **limits).truncated)
        kept = []
        for text, *parts in found.rows[["position", *Label._fields]].itertuples(index=False):
            label = Label(*parts)
            scores = of_label(found.maps, label)[text]
            where = None if self._how["units"] == "token" else found.content[text]
            loo = found.maps[REFERENCE][text]
            row = {"spearman": float(stats.spearman(scores, loo, where=where)[0])}
            whole = (None, None, None)
            if not label.family:
                whole = (scores, list(found.tokens[text]), found.content[text])
            row |= zip(("scores", "pieces", "content"), whole, strict=True)
            kept.append(row | {"cut": text in cut})
        return found.rows.drop(columns="position").join(pd.DataFrame(kept))
