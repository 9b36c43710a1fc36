"""Rows of measurements, one a text and map, and the tables they give: one column by text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import run
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
        return wide(rows, column, "method")[list(methods or measured)].rename_axis(columns=None)

    def ablations(self, column: str = "r", readout: str = "word") -> pd.DataFrame:
        """Return one column of the layer ablations as (text, (family, layer)).

        ValueError where there are none at this read-out.
        """
        rows = self.rows[(self.rows.family != "") & (self.rows.readout == readout)]
        if rows.empty:
            raise ValueError(f"no layer ablations at {readout!r} among the rows")
        order = rows[["family", "layer"]].drop_duplicates()
        return wide(rows, column, ["family", "layer"])[list(order.itertuples(index=False))]

    def summary(self, column: str = "r", methods: Sequence[str] | None = None) -> pd.DataFrame:
        """Return each method's mean of a column over texts, as `lrputils.stats.estimates`.

        The interval of a correlation ends at ±1.
        """
        options = {"within": stats.CORRELATION} if column in CORRELATIONS else {}
        return stats.estimates(self.per_text(column, methods), **options)

    def accuracy(self) -> float | None:
        """Return the share of texts whose predicted class is their label.

        None where a text has no label, or one that is no class of the model.
        """
        texts = self.rows.drop_duplicates(_text(self.rows))
        known = texts.label.notna().all()
        return float((texts.target == texts.label).mean()) if known else None


def _text(rows: pd.DataFrame) -> str:
    """Which column tells the texts apart."""
    return "position" if "position" in rows else "id"


def wide(rows: pd.DataFrame, column: str, columns: str | list[str]) -> pd.DataFrame:
    """Return one column of rows as (text, `columns`), texts in the order of the rows."""
    text = _text(rows)
    found = rows.pivot(index=text, columns=columns, values=column)
    return found.loc[rows[text].unique()].astype(float)


def predicted(
    classifier: Classifier, texts: Texts, batch_size: int, max_length: int | None
) -> Iterator[tuple[Inputs, Tensor, list[dict[str, Any]]]]:
    """Yield texts of like length: their inputs, predicted classes, and what a row says of each.

    Longer texts are cut. A row has `position`, `id`, `target`, `label` (the text's own class, None
    without one), `logit` (of the target) and `content`, (tokens,), false at special tokens.
    """
    labels = classifier.number_labels(texts.labels or [None] * len(texts))
    for batch in by_length(texts, batch_size):
        inputs = classifier.encode([texts[i] for i in batch], max_length, truncate=True)
        with torch.inference_mode():
            logits = run(classifier.architecture, classifier.architecture.arguments(inputs))
        target, content = logits.argmax(1), inputs.content_mask.cpu().numpy()
        rows = [
            {
                "position": text,
                "id": texts.ids[text],
                "target": int(target[row]),
                "label": labels[text],
                "logit": float(logits[row, target[row]]),
                "content": content[row, :length],
            }
            for row, (text, length) in enumerate(zip(batch, inputs.lengths.tolist(), strict=True))
        ]
        yield inputs, target, rows


def in_order(rows: Iterable[Mapping[str, Any]], *without: str) -> pd.DataFrame:
    """Return rows as a table in the order of the texts, `position` and some columns left out."""
    ordered = sorted(rows, key=lambda row: row["position"])
    return pd.DataFrame(ordered).drop(columns=["position", *without])
