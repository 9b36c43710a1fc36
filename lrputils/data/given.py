"""Texts as people have them in Python: strings, pairs, records, an array, a table; no other thing.

A text is a string or, for models that read two texts at once, a pair of strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from io import IOBase
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd

Text = str | tuple[str, str]

COLUMNS = {
    "text": ("text", "sentence", "review", "content"),
    "label": ("label", "labels", "sentiment"),
    "id": ("id", "idx"),
}
PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "passage"),
    ("text", "text_pair"),
)
_TAKES = (
    "a string, a list or an iterator of strings, of pairs or of records, an array or a Series of "
    "them, a DataFrame or a datasets.Dataset"
)


def sides(text: Text) -> tuple[str, ...]:
    """Return the strings of a text: itself, or the two of a pair."""
    return (text,) if isinstance(text, str) else tuple(text)


def size(text: Text) -> int:
    """Return the number of a text's characters, of both sides of a pair."""
    return sum(map(len, sides(text)))


def is_text(value: Any) -> bool:
    """Whether this is a string, or a pair of strings."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    return isinstance(value, str) or (pair and all(isinstance(side, str) for side in value))


def frame(given: Any, text_column: str | None = None) -> pd.DataFrame:
    """Return texts at hand as a table; of strings and pairs it has one column, `text`.

    Raises:
        TypeError: anything else (see the message), a text that is not a string or a pair of
            strings, or several splits, of which one has to be chosen.
        ValueError: no texts, or one that is not valid Unicode.
    """
    if isinstance(given, Mapping):
        return _table_of(given)
    given = given.to_pandas() if hasattr(given, "to_pandas") else given
    if isinstance(given, pd.DataFrame):
        return given
    rows = _listed(given)
    if isinstance(rows[0], Mapping) and "input_ids" not in rows[0]:
        strays = [row for row, record in enumerate(rows) if not isinstance(record, Mapping)]
        if strays:
            raise TypeError(f"Text {strays[0]} is no record, as those before it are")
        return pd.DataFrame(rows)
    for row, text in enumerate(rows):
        if not is_text(text):
            kind = type(text).__name__
            raise TypeError(f"Text {row} is {text!r} ({kind}), not a string or a pair of strings")
        try:
            " ".join(sides(text)).encode()
        except UnicodeEncodeError as error:  # other bytes, read as if they were UTF-8
            around = error.object[max(0, error.start - 20) : error.start + 20]
            raise ValueError(f"Text {row} is not valid Unicode at {around!r}") from None
    texts = [str(text) if isinstance(text, str) else tuple(text) for text in rows]
    return pd.DataFrame({text_column or "text": pd.Series(texts, dtype=object)})


def _table_of(given: Mapping[str, Any]) -> pd.DataFrame:
    """A record, or lists of equal length by column, as a table."""
    if given and all(hasattr(part, "column_names") for part in given.values()):
        raise TypeError(
            f"texts are not taken from a {type(given).__name__}: pass one of its splits "
            f"{list(given)}"
        )
    if "input_ids" in given:
        raise TypeError("these are encoded texts: pass them to a method, or the texts here")
    single = all(np.ndim(value) == 0 for value in given.values())
    try:
        return pd.DataFrame([given] if single else dict(given))
    except ValueError as error:
        raise TypeError(f"texts are not taken from a {type(given).__name__}: {error}") from None


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [given]
    sequence = isinstance(given, Sequence | Iterator | ValuesView | pd.Series | pd.Index)
    array = isinstance(given, np.ndarray) and given.ndim == 1
    if not (sequence or array) or isinstance(given, bytes | bytearray | range | IOBase):
        shape = f" of shape {given.shape}" if isinstance(given, np.ndarray) else ""
        raise TypeError(f"texts are {_TAKES}; got a {type(given).__name__}{shape}")
    rows = list(given)
    if not rows:
        raise ValueError("There are no texts")
    return rows


def strings(given: Any) -> list[Text]:
    """Return texts as a list of strings or pairs, of a table those in columns of usual names.

    Raises:
        TypeError, ValueError: see `frame` and `find_columns`.
    """
    table = frame(given)
    text, _, _ = find_columns(table)
    return frame(texts_in(table, text))["text"].tolist()


def texts_in(table: pd.DataFrame, columns: Sequence[Any]) -> list[Any]:
    """Return what stands in a table's column of texts, or in two columns as pairs."""
    if len(columns) == 1:
        return table[columns[0]].tolist()
    return [*zip(*(table[name] for name in columns), strict=True)]


def find_columns(
    table: pd.DataFrame,
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    name: str = "The table",
) -> tuple[tuple[Any, ...], Any | None, Any | None]:
    """Return a table's columns of texts (two where they are pairs), of labels and of identifiers.

    Those that are asked for, or else those with usual names, or None. `text_column` names one
    column, or the two of pairs, as "premise,hypothesis". Warns where only one of two columns is
    read that usually hold pairs.

    Raises:
        ValueError: no such column, or none of a usual name that could hold texts.
    """
    plain = {str(known).strip().lower(): known for known in reversed(list(table))}

    def _usual(role: str) -> Any | None:
        return next((plain[known] for known in COLUMNS[role] if known in plain), None)

    def _choose(problem: str, role: str) -> ValueError:
        way = f"choose {role}_column (in a chapter, `columns`) from {list(table)}"
        return ValueError(f"{name} {problem}: {way}")

    pair = next((tuple(plain[side] for side in two) for two in PAIRS if {*two} <= {*plain}), None)
    text = pair or (_usual("text"),)
    if text_column:
        whole = text_column in table
        text = (text_column,) if whole else tuple(map(str.strip, text_column.split(",")))
        if pair and len(text) == 1 and text[0] in pair:
            both = ",".join(map(str, pair))
            warn(
                f"{name} has the columns {both}, which usually are pairs, and {text[0]!r} alone is "
                f"read: text_column={both!r} (--text-column {both}) takes both",
                stacklevel=4,
            )
    elif text == (None,):
        raise _choose(f"has none of the columns {list(COLUMNS['text'])}", "text")
    if len(text) > 2:
        raise ValueError(f"text_column={text_column!r}: a text has one column, and a pair two")
    for role, wanted in (*(("text", one) for one in text), ("label", label_column or None)):
        if wanted is not None and wanted not in table:
            raise _choose(f"has no column {wanted!r}", role)
    return text, label_column or _usual("label"), _usual("id")
