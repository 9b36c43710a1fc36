"""Texts with labels: this book's own reviews, a file, a folder, a data set of the hub, a table.

One call for all of them. The result remembers where it came from (`identity`), so that a recorded
run can say which texts it measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrputils.data import files, given, hub

REVIEWS = Path(__file__).parents[1] / "assets" / "reviews"
OWN = {"reviews": REVIEWS / "short.csv", "reviews-long": REVIEWS / "long.csv"}

# Training data are never the default.
_PREFERRED_SPLITS = ("validation", "test")


@dataclass(frozen=True, repr=False)
class Texts(Sequence):
    """Texts, their labels and their origin; a sequence of the texts.

    Attributes:
        labels: one a text, integers where the source has integers; None if it has none.
        ids: the source's own identifiers, or row numbers counted from 0, as strings.
        name: the data set and split.
        identity: the hub's commit, or the sha256 of the files read.
    """

    texts: tuple[str, ...]
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
    min_words: int = 1,
    max_words: int | None = None,
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
            strings, a DataFrame, a `datasets.Dataset`.
        columns: `text_column` and, after a comma, `label_column`, as chapters take them.
        split: "validation", "test", …; by default the first of these two that exists, or the only
            split there is.
        subset: which of a data set's configurations, where it has several ("sst2" of
            "nyu-mll/glue").
        text_column: the column of texts; found by its usual names if not given.
        label_column: the column of labels; found by its usual names if not given.
        min_words: leave out texts with fewer words (separated by blanks).
        max_words: leave out texts with more words.
        limit: at most this many texts, the first ones.
        seed: shuffle before `limit` is applied; no shuffling if not given.
        revision: branch, tag or commit of a data set of the hub; also "owner/name@revision".

    Raises:
        TypeError: texts at hand that are of no type that is taken.
        FileNotFoundError: no such file, folder or data set.
        ValueError: no such split or column, an unreadable file, an empty text among the chosen
            ones, or nothing left after the limits on length.
        ConnectionError: the hub cannot be reached and the data set is not in the local cache.
    """
    if columns and (text_column or label_column):
        raise ValueError(f"columns={columns!r} and text_column or label_column: give one of them")
    if columns:
        text_column, _, label_column = map(str.strip, columns.partition(","))
    if isinstance(dataset, str | Path | None):
        name, paths, commit = locate(dataset, split, subset, revision)
        table = pd.concat(map(files.read, paths), ignore_index=True)
    else:
        name, paths, commit = "texts at hand", [], None
        table = _at_hand(dataset, text_column)
        options = {"split": split, "subset": subset, "revision": revision}
        stray = [f"{option}={value!r}" for option, value in options.items() if value is not None]
        if stray:
            raise ValueError(f"{', '.join(stray)} belongs to files and the hub, not to {name}")
    text, label, identifier = find_columns(table, text_column, label_column, name)
    rows = _choose_rows(table[text], min_words, max_words, limit, seed, name)
    contents = files.blocks(paths)
    if not paths:
        held = [table[column].tolist() for column in (text, label) if column is not None]
        contents = [json.dumps(held, default=str).encode()]
    return Texts(
        texts=tuple(table[text].iloc[rows]),
        labels=None if label is None else tuple(table[label].iloc[rows].tolist()),
        ids=tuple(map(str, rows if identifier is None else table[identifier].iloc[rows])),
        name=name,
        identity=f"commit {commit}" if commit else files.digest(contents),
    )


def find_columns(
    table: pd.DataFrame, text_column: str | None, label_column: str | None, name: str
) -> list[Any]:
    """Return the names of the columns of texts, labels and identifiers; None for a missing one."""
    return [
        given.column(
            table,
            role,
            wanted,
            name=f"Data set {name!r}",
            choose=f"{role}_column (in a chapter, `columns`)",
        )
        for role, wanted in (("text", text_column), ("label", label_column), ("id", None))
    ]


def as_texts(texts: Any, text_column: str | None, label_column: str | None) -> Texts:
    """Return texts at hand as `Texts`: these themselves, one string, or what `load_texts` takes."""
    if isinstance(texts, Texts):
        if text_column or label_column:
            raise ValueError("choose text_column and label_column when loading these texts")
        return texts
    if isinstance(texts, str | Path | None):  # a name or a path is for `load_texts` alone
        texts = given.strings(texts)
    return load_texts(texts, text_column=text_column, label_column=label_column)


def _at_hand(dataset: Any, text_column: str | None) -> pd.DataFrame:
    if isinstance(dataset, Texts):
        columns = {"id": dataset.ids, "text": dataset.texts, "label": dataset.labels}
        return pd.DataFrame({name: values for name, values in columns.items() if values})
    table = given.frame(dataset)
    return pd.DataFrame({text_column or "text": given.strings(dataset)}) if table is None else table


def locate(
    dataset: str | Path | None, split: str | None, subset: str | None, revision: str | None
) -> tuple[str, list[Path], str | None]:
    """Return the name of the data set and split, its files, and their commit on the hub."""
    name, commit = "reviews" if dataset is None else str(dataset), None
    if name in OWN:
        places = {name: [OWN[name]]}
    else:
        name, path, commit = hub.find(
            name,
            kind="dataset",
            wanted=_wanted,
            parameter="dataset",
            revision=revision,
            local=files.kind(name) is not None,
        )
        if path.is_file():
            name = files.stem(path)
            places = {name: [path]}
        else:
            places = files.splits(path, subset, name)
    chosen = _choose_split(places, split, name)
    return name if chosen == name else f"{name} [{chosen}]", places[chosen], commit


def _wanted(names: Iterable[str]) -> list[str]:
    """Choose what to download: data, and the README that says which files are which split."""
    return [name for name in names if name == "README.md" or files.readable(name)]


def _choose_split(places: dict[str, list[Path]], split: str | None, name: str) -> str:
    if split is None:
        known = [*places] if len(places) == 1 else _PREFERRED_SPLITS
        split = next((one for one in known if one in places), None)
    if split not in places:
        problem = "needs a split" if split is None else f"has no split {split!r}"
        raise ValueError(f"Data set {name!r} {problem}: choose from {sorted(places)}")
    return split


def _choose_rows(
    column: pd.Series,
    min_words: int,
    max_words: int | None,
    limit: int | None,
    seed: int | None,
    name: str,
) -> list[int]:
    """Return the numbers of the chosen rows; none of them is without a text."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves no text")
    if column.empty:
        raise ValueError(f"Data set {name!r} holds no texts")
    rows = np.arange(len(column))
    if min_words > 1 or max_words is not None:
        words = column.astype(str).str.split().str.len().to_numpy()
        longest = np.inf if max_words is None else max_words
        rows = rows[(words >= min_words) & (words <= longest)]
    if seed is not None:
        rows = np.random.default_rng(seed).permutation(rows)
    if not len(rows):
        raise ValueError(
            f"Data set {name!r} has no text of {min_words} to {max_words or 'any number of'} "
            f"words among its {len(column)}"
        )
    for row, value in zip(rows[:limit], column.iloc[rows[:limit]], strict=True):
        check_text(row, value, column.name, name)
    return rows[:limit].tolist()


def check_text(row: int, value: Any, column: Any, name: str) -> None:
    """Raise ValueError if a row holds no text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"Data set {name!r} has no text in row {row} of column {column!r}: {value!r}. "
            f"Remove such rows, or choose another text_column"
        )
