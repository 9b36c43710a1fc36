"""Texts with labels: this book's own reviews, a file, a folder, a data set of the hub, a table.

One call for all of them, and one that reads them in parts while they are used. Both remember where
the texts came from (`identity`), so that a recorded run can say which it measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lrputils.data import files, given
from lrputils.data.given import Text

REVIEWS = Path(__file__).parents[1] / "assets" / "reviews"
OWN = {"reviews": REVIEWS / "short.csv", "reviews-long": REVIEWS / "long.csv"}

_ALL = 2**31  # rows at a time


@dataclass(frozen=True, repr=False)
class Texts(Sequence):
    """Texts, their labels and their origin; a sequence of the texts, strings or pairs of them.

    Attributes:
        labels: one a text, integers where the source has integers; None if it has none.
        ids: the source's own identifiers, or row numbers counted from 0, as strings.
        name: the data set and split.
        identity: the hub's commit, or the sha256 of the files read.
    """

    texts: tuple[Text, ...]
    labels: tuple[int | str, ...] | None
    ids: tuple[str, ...]
    name: str
    identity: str

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: Any) -> Any:
        return self.texts[index]

    def take(self, rows: Iterable[int]) -> Texts:
        """Return the texts of these row numbers, in this order."""
        rows = list(rows)
        return replace(
            self,
            texts=tuple(self.texts[row] for row in rows),
            labels=self.labels and tuple(self.labels[row] for row in rows),
            ids=tuple(self.ids[row] for row in rows),
        )

    def parts(self, size: int) -> Iterator[Texts]:
        """Yield that many texts at a time, the last time what is left."""
        numbers = range(len(self))
        return (self.take(numbers[start : start + size]) for start in numbers[::size])

    def __repr__(self) -> str:
        return f"Texts({self.name}: {len(self)} texts, {self.identity[:19]}…)"


def load_texts(
    dataset: Any = None,
    columns: str = "",
    *,
    split: str | None = None,
    subset: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    revision: str | None = None,
) -> Texts:
    """Load texts.

    Args:
        dataset: `None` or "reviews" for the short reviews written for this book, "reviews-long"
            for the long ones; a CSV, TSV, Parquet, JSON, JSON-lines or text file (a line a text),
            compressed or not; a folder with a file or a folder a split; a data set of the Hugging
            Face hub such as "stanfordnlp/sst2"; or texts at hand: a list, array or Series of
            strings or of pairs of strings, records, a DataFrame, a `datasets.Dataset`.
        columns: `text_column` and, after a comma, `label_column`, as chapters take them; of pairs
            three names, as "premise,hypothesis,label".
        split: "validation", "test", …; by default the first of these two that exists, or the only
            split there is.
        subset: which of a data set's configurations, where it has several ("sst2" of
            "nyu-mll/glue").
        text_column: the column of texts, or the two of pairs, as "premise,hypothesis"; found by
            usual names if not given.
        label_column: the column of labels; found by its usual names if not given.
        limit: at most this many texts, the first ones.
        seed: shuffle before `limit` is applied; no shuffling if not given.
        revision: branch, tag or commit of a data set of the hub; also "owner/name@revision".

    Raises:
        TypeError: texts at hand that are of no type that is taken.
        FileNotFoundError: no such file, folder or data set.
        ValueError: no such split or column, an unreadable file, no texts, or an empty text among
            those that are read.
        ConnectionError: the hub cannot be reached and the data set is not in the local cache.
    """
    if columns and (text_column or label_column):
        raise ValueError(f"columns={columns!r} and text_column or label_column: give one of them")
    if columns:
        names = [name.strip() for name in columns.split(",")]
        text_column = ",".join(names[: max(1, len(names) - 1)])
        label_column = names[-1] if len(names) > 1 else None
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves no text")
    if isinstance(dataset, str | Path | None):
        source = _find(dataset, split, subset, revision)
        tables = source._tables(_ALL, text_column)
    else:
        options = {"split": split, "subset": subset, "revision": revision}
        stray = [f"{option}={value!r}" for option, value in options.items() if value is not None]
        if stray:
            raise ValueError(
                f"{', '.join(stray)} belongs to files and the hub, not to texts at hand"
            )
        source, tables = _Source("texts at hand", []), [_table(dataset, text_column)]
    rows = _rows(source.name, tables, text_column, label_column)
    if seed is not None:
        rows = [*rows]
        rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    identity = source._identity if source.paths else None
    return _texts([*islice(rows, limit)], source.name, identity)


@dataclass(frozen=True)
class TextStream:
    """Texts that are read while they are used: any number of them takes no more memory.

    Given a number, `parts` yields that many texts at a time, the last time what is left.
    """

    name: str
    identity: str
    parts: Callable[[int], Iterator[Texts]]


def stream_texts(
    dataset: str | Path | None = None,
    *,
    split: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> TextStream:
    """Find the texts that `load_texts` loads, with the same arguments, without reading them yet.

    With a `seed`, or in a file that holds one value of JSON, they are in memory all the same.
    Errors are those of `load_texts`; what is wrong with a file or a row shows when it is read.
    """
    wanted = {"text_column": text_column, "label_column": label_column}
    if seed is not None:
        whole = load_texts(dataset, split=split, limit=limit, seed=seed, **wanted)
        return TextStream(whole.name, whole.identity, whole.parts)
    source = _find(dataset, split, None, None)
    identity = source._identity

    def parts(size: int) -> Iterator[Texts]:
        tables = source._tables(1_024, text_column)
        rows = islice(_rows(source.name, tables, **wanted), limit)
        while part := [*islice(rows, size)]:
            yield _texts(part, source.name, identity)

    return TextStream(source.name, identity, parts)


def as_texts(texts: Any, text_column: str | None = None, label_column: str | None = None) -> Texts:
    """Return texts at hand as `Texts`: these themselves, one string, or what `load_texts` takes."""
    if isinstance(texts, Texts) and not (text_column or label_column):
        return texts
    if isinstance(texts, str | Path | None):  # a name or a path is for `load_texts` alone
        texts = given.strings(texts)
    return load_texts(texts, text_column=text_column, label_column=label_column)


def _table(held: Any, text_column: str | None) -> pd.DataFrame:
    if not isinstance(held, Texts):
        return given.frame(held, text_column)
    table = pd.DataFrame({"id": held.ids, "text": pd.Series(held.texts, dtype=object)})
    return table if held.labels is None else table.assign(label=held.labels)


class _Source(NamedTuple):
    """Where texts are read from: the data set and split, its files, their commit on the hub."""

    name: str
    paths: list[Path]
    commit: str | None = None

    @property
    def _identity(self) -> str:
        """The hub's commit, or the sha256 of the files."""
        return f"commit {self.commit}" if self.commit else files.digest(files.blocks(self.paths))

    def _tables(self, rows: int, text_column: str | None) -> Iterator[pd.DataFrame]:
        """Yield what the files hold, about so many rows at a time."""
        usual = {*given.COLUMNS["text"]}.union(*given.PAIRS)
        texts = usual | {text_column or "text", *(text_column or "").split(",")}
        for path in self.paths:
            yield from files.tables(path, rows, texts)


def _rows(
    name: str,
    tables: Iterable[pd.DataFrame],
    text_column: str | None,
    label_column: str | None,
) -> Iterator[tuple[str, Text, Any]]:
    """Yield the identifier, text and label of each row, the label None where there is none."""
    first = 0
    for table in tables:
        own, label, identifier = given.find_columns(
            table, text_column, label_column, name=f"Data set {name!r}"
        )
        numbers = range(first, first + len(table))
        ids = numbers if identifier is None else table[identifier].tolist()
        labels = repeat(None) if label is None else table[label].tolist()
        for number, identity, text, meant in zip(numbers, ids, given.texts_in(table, own), labels):  # noqa: B905
            if not given.is_text(text) or not all(map(str.strip, given.sides(text))):
                column = ",".join(map(str, own))
                raise ValueError(
                    f"Data set {name!r} has no text in row {number} of column {column!r}: "
                    f"{text!r}. Remove such rows, or choose another text_column"
                )
            yield str(identity), text, meant
        first += len(table)
    if not first:
        raise ValueError(f"Data set {name!r} holds no texts")


def _texts(rows: Sequence[tuple[str, Text, Any]], name: str, identity: str | None) -> Texts:
    """Return rows as texts; what has no identity of its source is known by itself."""
    ids, texts, labels = zip(*rows, strict=True)
    held = [texts, labels] if any(label is not None for label in labels) else [texts]
    identity = identity or files.digest([json.dumps(held, default=str).encode()])
    return Texts(texts, held[1] if held[1:] else None, ids, name, identity)


def _find(
    dataset: str | Path | None, split: str | None, subset: str | None, revision: str | None
) -> _Source:
    asked = "reviews" if dataset is None else str(dataset)
    place = str(OWN.get(asked, asked))
    name, path, commit = files.find(
        place,
        kind="dataset",
        wanted=_wanted,
        parameter="dataset",
        revision=revision,
        local=files.kind(place) is not None,
    )
    if path.is_file():
        name = asked if asked in OWN else files.stem(path)
        places = {name: [path]}
    else:
        places = files.splits(path, subset, name)
    if split is None:  # training data are never the default
        known = [*places] if len(places) == 1 else ("validation", "test")
        split = next((one for one in known if one in places), None)
    if split not in places:
        problem = "needs a split" if split is None else f"has no split {split!r}"
        raise ValueError(f"Data set {name!r} {problem}: choose from {sorted(places)}")
    return _Source(name if split == name else f"{name} [{split}]", places[split], commit)


def _wanted(names: Iterable[str]) -> list[str]:
    """Choose what to download: data, and the README that says which files are which split."""
    return [name for name in names if name == "README.md" or files.readable(name)]
