"""Texts as people have them in Python: strings, pairs, records, an array, a table; no other thing.

A text is a string or, for models that read two texts at once, a pair of strings; for a language
model an `Exchange`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from contextlib import suppress
from dataclasses import dataclass
from io import IOBase
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd

from lrputils.mistakes import about, listed


@dataclass(frozen=True)
class Exchange:
    """What a language model is given to read, and what it says to it.

    Attributes:
        prompt: a text, or the messages of a chat, `{"role": …, "content": …}` each.
        answer: None where it is not known, or not asked for.
    """

    prompt: str | Sequence[Mapping[str, Any]]
    answer: str | None = None


Text = str | tuple[str, str] | Exchange

COLUMNS = {
    "text": ("text", "sentence", "review", "content", "messages"),
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
LONGEST = 5_000_000  # characters of a text
OWN = "own"  # in the place of a column of answers: what the model says itself
_TAKES = (
    "a string, a list or an iterator of strings, of pairs or of records, an array or a Series of "
    "them, a DataFrame or a datasets.Dataset"
)


def sides(text: Text) -> tuple[str, ...]:
    """Return the strings of a text: itself, the two of a pair, or all that an exchange says."""
    if isinstance(text, Exchange):
        chat = not isinstance(text.prompt, str)
        said = [str(part["content"]) for part in text.prompt] if chat else [text.prompt]
        return (*said, text.answer or "")
    return (text,) if isinstance(text, str) else tuple(text)


def is_chat(value: Any) -> bool:
    """Whether this is a list of messages, `{"role": …, "content": …}` each."""
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(isinstance(part, Mapping) and {"role", "content"} <= {*part} for part in value)
    )


def as_chat(text: str) -> Any:
    """Return the chat that a text is in JSON, or the text."""
    with suppress(ValueError):
        read = json.loads(text)
        return read if is_chat(read) else text
    return text


def is_text(value: Any) -> bool:
    """Whether this is a string, a pair of strings or an exchange."""
    pair = isinstance(value, tuple | list) and len(value) == 2
    return isinstance(value, str | Exchange) or (
        pair and all(isinstance(side, str) for side in value)
    )


def has_splits(given: Any) -> bool:
    """Whether this is a `datasets.DatasetDict`."""
    several = isinstance(given, Mapping) and len(given) > 0
    return several and all(hasattr(part, "column_names") for part in given.values())


def frame(given: Any, text_column: str | None = None) -> pd.DataFrame:
    """Return texts at hand as a table; of strings and pairs it has one column, `text`.

    Raises:
        TypeError: anything else (see the message), a text that is not a string or a pair of
            strings, or several splits, of which one has to be chosen.
        ValueError: no texts.
    """
    if isinstance(given, Mapping):  # a record, or lists of equal length by column
        if has_splits(given):
            raise TypeError(
                f"texts are not taken from a {type(given).__name__}: pass one of its splits "
                f"{list(given)}"
            )
        if "input_ids" in given:
            raise TypeError("these are encoded texts: pass them to a method, or the texts here")
        return pd.DataFrame([given] if not any(map(np.ndim, given.values())) else dict(given))
    given = given.to_pandas() if hasattr(given, "to_pandas") else given
    if isinstance(given, pd.DataFrame):
        return given
    given = [given] if isinstance(given, str) else given
    sequence = isinstance(given, Sequence | Iterator | ValuesView | pd.Series | pd.Index)
    array = isinstance(given, np.ndarray) and given.ndim == 1
    if not (sequence or array) or isinstance(given, bytes | bytearray | range | IOBase):
        shape = f" of shape {given.shape}" if isinstance(given, np.ndarray) else ""
        raise TypeError(f"texts are {_TAKES}; got a {type(given).__name__}{shape}")
    rows = list(given)
    if not rows:
        raise ValueError("There are no texts")
    records = isinstance(rows[0], Mapping)
    for row, text in enumerate(rows):
        if not (isinstance(text, Mapping) if records else is_text(text)):
            taken = "a record as text 0 is" if records else "a string or a pair of strings"
            raise TypeError(f"Text {row} is {text!r} ({type(text).__name__}), not {taken}")
    if is_chat(rows):
        raise TypeError(
            "these are messages of a chat, whose roles and template would be lost: pass the text "
            "that the model reads, tokenizer.apply_chat_template(messages, tokenize=False)"
        )
    if records:
        return pd.DataFrame(rows)
    return pd.DataFrame({text_column or "text": pd.Series(rows, dtype=object)})


def read(
    tables: Iterable[pd.DataFrame],
    text_column: str | None = None,
    label_column: str | None = None,
    *,
    answers: str | None = None,
    name: str = "The table",
    blank: bool = False,
) -> Iterator[tuple[str, Text, Any]]:
    """Yield the identifier, text and label of each row of tables with the same columns.

    Identifiers are row numbers, counted from 0, where no column holds them; labels are None. With
    `answers`, a column of what is said to each text or `OWN`, each text is an `Exchange`.

    Raises:
        ValueError: no such column (see `_find_columns`), no rows, or a row whose text is not valid
            Unicode, not a string or a pair of strings, or, unless they may be `blank`, empty.
    """
    first = 0
    for table in tables:
        own, label, identifier = _find_columns(table, text_column, label_column, name)
        columns = [table[column].tolist() for column in own]
        texts = columns[0] if len(own) == 1 else zip(*columns, strict=True)
        if answers or own == ("messages",):
            texts = _exchanges(texts, table, answers, name)
        numbers = range(first, first + len(table))
        ids = numbers if identifier is None else table[identifier].tolist()
        labels = [None] * len(table) if label is None else table[label].tolist()
        for number, identity, text, meant in zip(numbers, ids, texts, labels, strict=True):
            alike = any if isinstance(text, Exchange) else all
            if not is_text(text) or not (blank or alike(map(str.strip, sides(text)))):
                raise ValueError(
                    f"{name} has no text in row {number} of column {','.join(map(str, own))!r}: "
                    f"{text!r}. Remove such rows, or choose another " + about("text_column")
                )
            if (size := sum(map(len, sides(text)))) > LONGEST:
                raise ValueError(
                    f"{name} has {size:,} characters in row {number}, and {LONGEST:,} are read: "
                    "cut the text"
                )
            try:
                " ".join(sides(text)).encode()
            except UnicodeEncodeError as error:  # other bytes, read as if they were UTF-8
                around = error.object[max(0, error.start - 20) : error.start + 20]
                raise ValueError(f"Text {number} is not valid Unicode at {around!r}") from None
            plain = str if isinstance(text, str) else tuple
            yield str(identity), text if isinstance(text, Exchange) else plain(text), meant
        first += len(table)
    if not first:
        raise ValueError(f"{name} holds no texts")


def _exchanges(
    prompts: Iterable[Any], table: pd.DataFrame, answers: str | None, name: str
) -> Iterator[Any]:
    """Yield prompts with their answers; messages may be in JSON. What is no prompt stays as it is.

    Raises:
        ValueError: no such column of answers, or one that is no text.
    """
    if answers not in (None, OWN, *table):
        raise ValueError(
            f"{name} has no column {answers!r}: choose "
            + about("answers")
            + f" from [{listed([*map(repr, table)])}], or {OWN!r}, the model's own"
        )
    said = [None] * len(table) if answers in (None, OWN) else table[answers].tolist()
    for number, (prompt, answer) in enumerate(zip(prompts, said, strict=True)):
        if answers not in (None, OWN) and not (isinstance(answer, str) and answer.strip()):
            raise ValueError(f"{name} has no answer in row {number} of {answers!r}: {answer!r}")
        prompt = as_chat(prompt) if isinstance(prompt, str) else prompt
        prompt = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
        fits = isinstance(prompt, str) or is_chat(prompt)
        yield Exchange(prompt, answer) if fits else prompt


def _find_columns(
    table: pd.DataFrame, text_column: str | None, label_column: str | None, name: str
) -> tuple[tuple[Any, ...], Any | None, Any | None]:
    """Return a table's columns of texts (two where they are pairs), of labels and of identifiers.

    Those that are asked for, or else those with usual names, or None. `text_column` names one
    column, or the two of pairs, as "premise,hypothesis". Warns where only one of two columns is
    read that usually hold pairs.

    Raises:
        ValueError: no such column, or none of a usual name that could hold texts.
    """
    plain = {str(known).strip().lower(): known for known in reversed(list(table))}
    text, label, identifier = (
        next((plain[name] for name in names if name in plain), None) for names in COLUMNS.values()
    )
    pair = next((tuple(plain[side] for side in two) for two in PAIRS if {*two} <= {*plain}), None)
    texts = pair or (text,)
    if text_column:
        whole = text_column in table
        texts = (text_column,) if whole else tuple(map(str.strip, text_column.split(",")))
        if pair and len(texts) == 1 and texts[0] in pair:
            both = ",".join(map(str, pair))
            warn(
                f"{name} has the columns {both}, which usually are pairs, and {texts[0]!r} alone "
                f"is read: " + about("text_column", both) + " takes both",
                stacklevel=4,
            )
    if len(texts) > 2:
        raise ValueError(about("text_column", text_column) + ": a text has one column, a pair two")
    wanted = [("text", column) for column in texts] + [("label", label_column)] * bool(label_column)
    for role, column in wanted:
        if column not in table:
            lacks = f"no column {column!r}" if column else f"none of the columns {[*COLUMNS[role]]}"
            raise ValueError(
                f"{name} has {lacks}: choose "
                + about(f"{role}_column")
                + f" (in a chapter, `columns`) from [{listed([*map(repr, table)])}]"
            )
    return texts, label_column or label, identifier
