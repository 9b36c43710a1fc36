"""Texts as people have them in Python: a string, a list, an array, a table; the rest is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, ValuesView
from io import IOBase
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = {
    "text": ("text", "sentence", "review", "content"),
    "label": ("label", "labels", "sentiment"),
    "id": ("id", "idx"),
}
_TAKES = (
    "a string, a list or an iterator of strings, an array or a Series of them, a DataFrame or a "
    "datasets.Dataset"
)


def frame(given: Any) -> pd.DataFrame | None:
    """Return a DataFrame, or what turns into one by `to_pandas`, as a data frame; else None.

    Raises:
        TypeError: several splits or named columns in a mapping, of which one has to be chosen.
    """
    if isinstance(given, Mapping):
        if given and all(hasattr(part, "column_names") for part in given.values()):
            way = f"pass one of its splits {list(given)}"
        elif "input_ids" in given:
            way = "these are encoded texts: pass them to a method, or the texts themselves here"
        else:
            way = f"pass one of its values, or pandas.DataFrame(…); its keys are {[*given][:6]}"
        raise TypeError(f"texts are not taken from a {type(given).__name__}: {way}")
    if not isinstance(given, pd.DataFrame) and hasattr(given, "to_pandas"):
        given = given.to_pandas()
    return given if isinstance(given, pd.DataFrame) else None


def strings(given: Any) -> list[str]:
    """Return texts as a list of strings: one string, several, or a table's column of a usual name.

    Raises:
        TypeError: anything else (see the message), or a text that is not a string.
        ValueError: no texts, one that is not valid Unicode, or a table without such a column.
    """
    table = frame(given)
    if table is not None:
        given = table[column(table, "text")]
    if isinstance(given, str):
        return [str(given)]
    sequence = isinstance(given, Sequence | Iterator | ValuesView | pd.Series | pd.Index)
    array = isinstance(given, np.ndarray) and given.ndim == 1
    if not (sequence or array) or isinstance(given, bytes | bytearray | range | IOBase):
        shape = f" of shape {given.shape}" if isinstance(given, np.ndarray) else ""
        raise TypeError(f"texts are {_TAKES}; got a {type(given).__name__}{shape}")
    texts = list(given)
    if not texts:
        raise ValueError("There are no texts")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"Text {row} is {text!r} ({type(text).__name__}), not a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # bytes of another encoding, read as if they were UTF-8
            around = text[max(0, error.start - 20) : error.start + 20]
            raise ValueError(f"Text {row} is not valid Unicode at {around!r}") from None
    return list(map(str, texts))


def column(
    table: pd.DataFrame,
    role: str,
    wanted: str | None = None,
    *,
    name: str = "The table",
    choose: str = "the column to pass",
) -> Any:
    """Return the name of the column asked for, or of the first that has a usual name.

    `role` is "text", "label" or "id". A table without texts is refused, in words that call it
    `name` and tell what to `choose`; for the others the answer is None.
    """
    if wanted:
        if wanted in table:
            return wanted
        problem = f"has no column {wanted!r}"
    else:
        plain = {str(known).strip().lower(): known for known in reversed(list(table))}
        found = next((plain[known] for known in COLUMNS[role] if known in plain), None)
        if found is not None or role != "text":
            return found
        problem = f"has none of the columns {list(COLUMNS[role])}"
    raise ValueError(f"{name} {problem}: choose {choose} from {list(table)}")
