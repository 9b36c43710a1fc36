"""Rows of measurements, one a text and map, and the tables they give: one column by text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs, has_answers
from lrputils.model.proof import run_batch
from lrputils.model.readout import Target, explained, read, resolve_target
from lrputils.progress import bar
from lrputils.removal.packing import by_length

# Columns of rows that hold a correlation of two maps.
CORRELATIONS = ("r", "r_content", "r_normalised", "spearman", "spearman_content")


class Run:
    """Rows by text and map, of an evaluation or a recording, with the columns of `Label`."""

    rows: pd.DataFrame

    def per_text(
        self, column: str = "r", methods: Sequence[str] | None = None, readout: str | None = None
    ) -> pd.DataFrame:
        """Return one column as (text, method), in the order of the rows, ablations left out.

        It is one of numbers, or `scores`, the maps themselves.

        `methods` chooses and orders the columns; without a `readout` each method is taken where it
        was read first.

        Raises:
            ValueError: a method that was not measured there.
        """
        rows = self.rows[self.rows.family == ""]
        first = rows.groupby("method", sort=False, observed=True).readout.transform("first")
        rows = rows[rows.readout == (first if readout is None else readout)]
        measured = list(rows.method.unique())
        missing = [method for method in methods or () if method not in measured]
        if missing:
            place = f" at {readout!r}" if readout else ""
            raise ValueError(f"{missing} were not measured{place}; there are {measured}")
        return _wide(rows, column, "method")[list(methods or measured)].rename_axis(columns=None)

    def ablations(self, column: str = "r", readout: str = "word") -> pd.DataFrame:
        """Return one column of the layer ablations as (text, (family, layer)).

        ValueError where there are none at this read-out.
        """
        rows = self.rows[(self.rows.family != "") & (self.rows.readout == readout)]
        if rows.empty:
            raise ValueError(f"no layer ablations at {readout!r} among the rows")
        order = rows[["family", "layer"]].drop_duplicates()
        return _wide(rows, column, ["family", "layer"])[list(order.itertuples(index=False))]

    def summary(self, column: str = "r", methods: Sequence[str] | None = None) -> pd.DataFrame:
        """Return each method's mean of a column over texts, as `lrputils.stats.estimates`.

        The interval of a correlation ends at ±1.
        """
        options = {"within": stats.CORRELATION} if column in CORRELATIONS else {}
        return stats.estimates(self.per_text(column, methods), **options)


def _wide(rows: pd.DataFrame, column: str, columns: str | list[str]) -> pd.DataFrame:
    """Return one column of rows as (text, `columns`), texts in the order of the rows."""
    text = "position" if "position" in rows else "id"
    wide = rows.pivot(index=text, columns=columns, values=column)
    wide = wide.loc[rows[text].unique()]
    return wide if column == "scores" else wide.astype(float)


def predicted(
    classifier: Classifier,
    texts: Texts,
    batch_size: int,
    max_length: int | None,
    *,
    target: Target = None,
    truncate: bool = True,
    progress: bool = False,
    names: Mapping[Any, Any] | None = None,
) -> Iterator[tuple[Inputs, Tensor, list[dict[str, Any]]]]:
    """Yield texts of like length: their inputs, explained classes, and what a row says of each.

    The predicted class is explained unless a `target` names one. Longer texts are cut if
    `truncate`. For `names` see `Classifier.number_labels`. A row has `position`, `id`, `target`,
    `label` (the text's own class, None without one), `logit` (of the target; of an answer what is
    explained), `tokens` (how many), `content`, (tokens,), false at special tokens, and `cut`
    (whether the text was longer).
    """
    own_labels = texts.labels or [None] * len(texts)
    labels = classifier.number_labels(own_labels, names)
    classifier.warn_of_labels(own_labels, labels)
    batches = by_length(texts, batch_size)
    for batch in bar(progress, iterable=batches, desc="texts", unit="batch"):
        inputs = classifier.encode([texts[i] for i in batch], max_length, truncate=truncate)
        with naming([texts.ids[text] for text in batch]):
            chosen, f = _explained(classifier, inputs, target)
        content = inputs.content_mask.cpu().numpy()
        rows = [
            {
                "position": text,
                "id": texts.ids[text],
                "target": int(chosen[row].flatten()[0]),
                "label": labels[text],
                "logit": float(f[row]),
                "tokens": length,
                "content": content[row, :length],
                "cut": row in inputs.truncated,
            }
            for row, (text, length) in enumerate(zip(batch, inputs.lengths.tolist(), strict=True))
        ]
        yield inputs, chosen, rows


def _explained(classifier: Classifier, inputs: Inputs, target: Target) -> tuple[Tensor, Tensor]:
    """What is explained of each text, (batch,), and its size: a logit, or what is said."""
    if has_answers(inputs):
        reading = read(classifier.architecture, inputs, target=target)
        return reading.target, reading.output.detach()
    with torch.inference_mode():
        logits = run_batch(classifier.architecture, inputs)
    chosen = resolve_target(target, logits, classifier.model)
    return chosen, explained(logits, chosen)


@contextmanager
def naming(ids: Sequence[str]) -> Iterator[None]:
    """Inside the block a ValueError, which counts the rows of a batch, also names its texts."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; the rows are the texts {[*ids]}") from error
