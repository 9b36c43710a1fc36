"""Rows of measurements, one a text and map, and the tables they give: one column by text."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lrputils import stats


class Run:
    """Rows by text and map: what an evaluation and a recording have in common.

    Attributes:
        rows: columns `method`, `readout`, `family` and `layer` as in `variants.Label`.
    """

    rows: pd.DataFrame

    def per_text(
        self, column: str = "r", methods: Sequence[str] | None = None, readout: str | None = None
    ) -> pd.DataFrame:
        """Return one column as (text, method), texts and methods in the order of the rows.

        Args:
            column: of the rows.
            methods: the ones to return, in this order; all if not given, ablations left out.
            readout: where the methods are read; if not given, where each was read first.

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

        Raises:
            ValueError: there are no ablations at this read-out.
        """
        rows = self.rows[(self.rows.family != "") & (self.rows.readout == readout)]
        if rows.empty:
            raise ValueError(f"no layer ablations at {readout!r} among the rows")
        order = rows[["family", "layer"]].drop_duplicates()
        return wide(rows, column, ["family", "layer"])[list(order.itertuples(index=False))]

    def summary(self, column: str = "r", methods: Sequence[str] | None = None) -> pd.DataFrame:
        """Return each method's mean of a column over texts, as `lrputils.stats.estimates`."""
        return stats.estimates(self.per_text(column, methods))

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
