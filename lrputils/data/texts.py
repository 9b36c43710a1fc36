"""Texts with labels: this book's own reviews, a file, a folder or a data set of the hub.

One call for all of them. The result remembers where it came from (`identity`), so that a recorded
run can say which texts it measured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrputils.data import hub

REVIEWS = Path(__file__).parents[1] / "assets" / "reviews"
OWN = {"reviews": REVIEWS / "short.csv", "reviews-long": REVIEWS / "long.csv"}

_READERS = {
    ".csv": lambda path: pd.read_csv(path, keep_default_na=False, na_values=[""]),
    ".tsv": lambda path: pd.read_csv(path, sep="\t", keep_default_na=False, na_values=[""]),
    ".parquet": pd.read_parquet,
    ".json": pd.read_json,
    ".jsonl": lambda path: pd.read_json(path, lines=True),
}
_SHARD = re.compile(r"-\d+-of-\d+$")
_TEXT_COLUMNS = ("text", "sentence", "review", "content")
_LABEL_COLUMNS = ("label", "labels", "sentiment")
_ID_COLUMNS = ("id", "idx")
# Measuring on what a model was trained on is never the default.
_PREFERRED_SPLITS = ("validation", "test")


@dataclass(frozen=True, repr=False)
class Texts(Sequence):
    """Texts, their labels and their origin; a sequence of the texts.

    Attributes:
        texts: the texts.
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
    dataset: str | Path | None = None,
    *,
    split: str | None = None,
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
            for the long ones; a CSV, TSV, Parquet, JSON or JSON-lines file; a folder with a file
            a split; or a data set of the Hugging Face hub such as "stanfordnlp/sst2".
        split: "validation", "test", …; by default the first of these two that exists, or the only
            split there is.
        text_column: the column of texts; found by its usual names if not given.
        label_column: the column of labels; found by its usual names if not given.
        min_words: leave out texts with fewer words (separated by blanks).
        max_words: leave out texts with more words.
        limit: at most this many texts, the first ones.
        seed: shuffle before `limit` is applied; no shuffling if not given.
        revision: branch, tag or commit of a data set of the hub.

    Raises:
        FileNotFoundError: no such file, folder or data set.
        ValueError: no such split or column, an unreadable file, an empty text among the chosen
            ones, or nothing left after the limits on length.
        ConnectionError: the hub cannot be reached and the data set is not in the local cache.
    """
    name, files, commit = _locate(dataset, revision)
    chosen = _choose_split(files, split, name)
    table = pd.concat([_read(path) for path in files[chosen]], ignore_index=True)
    name = name if chosen == name else f"{name} [{chosen}]"
    text = _column(table, text_column, _TEXT_COLUMNS, "text_column", name)
    label = _column(table, label_column, _LABEL_COLUMNS, "label_column", name, optional=True)
    rows = _choose_rows(table[text], min_words, max_words, limit, seed, name)
    _check_not_empty(table[text], rows, text, name)
    identifier = next((column for column in _ID_COLUMNS if column in table), None)
    return Texts(
        texts=tuple(table[text].iloc[rows]),
        labels=None if label is None else tuple(table[label].iloc[rows].tolist()),
        ids=tuple(map(str, rows if identifier is None else table[identifier].iloc[rows])),
        name=name,
        identity=commit or _digest(files[chosen]),
    )


def _locate(
    dataset: str | Path | None, revision: str | None
) -> tuple[str, dict[str, list[Path]], str | None]:
    """Return the data set's name, its files by split, and the hub's commit if it is from there."""
    name = "reviews" if dataset is None else str(dataset)
    if name in OWN:
        return name, {name: [OWN[name]]}, None
    if not (hub.is_path(name) or Path(name).suffix in _READERS):
        snapshot = hub.fetch(
            name, kind="dataset", wanted=_readable, parameter="dataset", revision=revision
        )
        return name, _splits(snapshot.folder, name), f"commit {snapshot.commit}"
    path = Path(name).expanduser()
    if revision is not None:
        raise ValueError(f"revision={revision!r} belongs to the hub, but {name!r} is a local path")
    if not path.exists():
        raise FileNotFoundError(
            f"dataset={name!r}: there is no such file or folder (looked in {Path.cwd()})"
        )
    if path.is_dir():
        return path.name, _splits(path, name), None
    return path.stem, {path.stem: [path]}, None


def _readable(names: Iterable[str]) -> list[str]:
    return [name for name in names if Path(name).suffix in _READERS and "/." not in f"/{name}"]


def _splits(folder: Path, name: str) -> dict[str, list[Path]]:
    """Group a folder's data files by split: `train-00000-of-00002.parquet` belongs to `train`."""
    names = _readable(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder / name for name in names):
        splits.setdefault(_SHARD.sub("", path.stem), []).append(path)
    if not splits:
        raise FileNotFoundError(
            f"dataset={name!r} holds no {', '.join(_READERS)} file (looked in {folder})"
        )
    for split, paths in splits.items():
        if len({path.parent for path in paths}) > 1 or len({path.suffix for path in paths}) > 1:
            places = ", ".join(str(path.relative_to(folder)) for path in paths[:4])
            raise ValueError(
                f"dataset={name!r}: split {split!r} stands in several places ({places}); "
                f"name one file or folder"
            )
    return splits


def _choose_split(files: dict[str, list[Path]], split: str | None, name: str) -> str:
    if split is None and len(files) == 1:
        return next(iter(files))
    if split is None:
        split = next((known for known in _PREFERRED_SPLITS if known in files), None)
    if split not in files:
        problem = "needs a split" if split is None else f"has no split {split!r}"
        raise ValueError(f"Data set {name!r} {problem}: choose from {sorted(files)}")
    return split


def _read(path: Path) -> pd.DataFrame:
    if path.suffix not in _READERS:
        raise ValueError(f"dataset={str(path)!r}: cannot read this; it may be {list(_READERS)}")
    try:
        return _READERS[path.suffix](path)
    except FileNotFoundError:
        raise
    except Exception as error:  # pandas raises a different class for each way of being malformed
        raise ValueError(f"dataset={str(path)!r} cannot be read: {error}") from error


def _column(
    table: pd.DataFrame,
    wanted: str | None,
    usual: Sequence[str],
    parameter: str,
    name: str,
    *,
    optional: bool = False,
) -> str | None:
    if wanted is None:
        found = next((column for column in usual if column in table), None)
        if found is not None or optional:
            return found
        problem = f"has none of the columns {list(usual)}"
    elif wanted in table:
        return wanted
    else:
        problem = f"has no column {wanted!r}"
    raise ValueError(f"Data set {name!r} {problem}: choose {parameter} from {list(table)}")


def _choose_rows(
    column: pd.Series,
    min_words: int,
    max_words: int | None,
    limit: int | None,
    seed: int | None,
    name: str,
) -> list[int]:
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves no text")
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
    return rows[:limit].tolist()


def _check_not_empty(column: pd.Series, rows: list[int], text: str, name: str) -> None:
    chosen = column.iloc[rows]
    for row, value in zip(rows, chosen, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(
                f"Data set {name!r} has no text in row {row} of column {text!r}: {value!r}. "
                f"Remove such rows, or choose another text_column"
            )


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return f"sha256 {digest.hexdigest()}"
