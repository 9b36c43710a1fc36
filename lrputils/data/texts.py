"""Texts with labels: this book's own reviews, a file, a folder, a data set of the hub, a table.

One call for all of them, and one that reads them in parts while they are used. Both remember where
the texts came from (`identity`), so that a recorded run can say which it measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any
from warnings import warn

import numpy as np
import pandas as pd

from lrputils.data import files, given
from lrputils.data.given import Text
from lrputils.mistakes import about

_REVIEWS = Path(__file__).parents[1] / "assets" / "reviews"
OWN = {"reviews": _REVIEWS / "short.csv", "reviews-long": _REVIEWS / "long.csv"}


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
    answers: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    revision: str | None = None,
) -> Texts:
    """Load texts.

    Args:
        dataset: `None` or "reviews" for the short reviews written for this book, "reviews-long"
            for the long ones; a CSV, TSV, Parquet, Arrow, JSON, JSON-lines or text file (a line a
            text), plain, .gz or alone in a .zip; a folder, whose splits `datasets` finds, or which
            its `save_to_disk` wrote; a data set of the Hugging Face hub such as "stanfordnlp/sst2";
            or texts at hand: a list, array or Series of strings or of pairs of strings, records, a
            DataFrame, a `datasets.Dataset` or `DatasetDict`.
        columns: `text_column` and, after a comma, `label_column`, as chapters take them; of pairs
            three names, as "premise,hypothesis,label".
        split: "validation", "test", …; by default the first of these two that exists, or the only
            split there is.
        subset: which of a data set's configurations, where it has several ("sst2" of
            "nyu-mll/glue").
        text_column: the column of texts, or the two of pairs, as "premise,hypothesis"; found by
            usual names if not given.
        label_column: the column of labels; found by its usual names if not given.
        answers: the column of what is said to each text by a language model, or "own": it is asked
            itself (see `Classifier.answered`). Each text is then an `Exchange`, of a text or of the
            messages of a chat.
        limit: at most this many texts, the first ones.
        seed: shuffle before `limit` is applied; no shuffling if not given.
        revision: branch, tag or commit of a data set of the hub; also ``owner/name@revision``.

    Raises:
        TypeError: texts at hand that are of no type that is taken.
        FileNotFoundError: no such file, folder or data set.
        ValueError: no such split or column, an unreadable file, no texts, or an empty text among
            those that are read.
        ConnectionError: the hub cannot be reached and the data set is not in the local cache.
    """
    stream = stream_texts(
        dataset,
        columns,
        split=split,
        subset=subset,
        text_column=text_column,
        label_column=label_column,
        answers=answers,
        limit=limit,
        seed=seed,
        revision=revision,
    )
    return next(stream.parts(2**31))


@dataclass(frozen=True)
class TextStream:
    """Texts that are read while they are used: any number of them takes no more memory.

    Attributes:
        name: the data set and split.
        identity: the hub's commit, or the sha256 of the files or of texts at hand.
        read: yields the identifier, text and label of each row, from so many rows at a time.
        each: what is done to the texts that are read: a language model answers them, or nothing.
    """

    name: str
    identity: str | None
    read: Callable[[int], Iterator[tuple[str, Text, Any]]]
    each: Callable[[Texts], Texts] | None = None

    def parts(self, size: int) -> Iterator[Texts]:
        """Yield that many texts at a time, the last time what is left."""
        rows = self.read(max(size, 1_024))
        while part := [*islice(rows, size)]:
            ids, texts, labels = zip(*part, strict=True)
            held = [texts, labels] if any(label is not None for label in labels) else [texts]
            identity = self.identity or files.digest([json.dumps(held, default=str).encode()])
            found = Texts(texts, held[1] if held[1:] else None, ids, self.name, identity)
            yield self.each(found) if self.each else found


def unanswered(texts: Texts | TextStream) -> Texts | TextStream:
    """Return texts as they are read, before a model answers them."""
    return replace(texts, each=None) if isinstance(texts, TextStream) else texts


def stream_texts(
    dataset: Any = None,
    columns: str = "",
    *,
    split: str | None = None,
    subset: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    answers: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    revision: str | None = None,
) -> TextStream:
    """Find the texts that `load_texts` loads, with the same arguments, without reading them yet.

    With a `seed`, or in a file that holds one value of JSON, they are in memory all the same.
    Errors are those of `load_texts`; what is wrong with a file or a row shows when it is read.
    """
    if columns and (text_column or label_column):
        raise ValueError(f"columns={columns!r} and text_column or label_column: give one of them")
    if columns:
        names = [name.strip() for name in columns.split(",")]
        text_column = ",".join(names[: max(1, len(names) - 1)])
        label_column = names[-1] if len(names) > 1 else None
    if limit is not None and limit < 1:
        raise ValueError(about("limit", limit) + " leaves no text")
    at_hand = not isinstance(dataset, str | Path | None)
    if given.has_splits(dataset):
        dataset, split = dataset[_choose(split, dataset, "texts at hand")], None
    if at_hand:
        options = {"split": split, "subset": subset, "revision": revision}
        stray = [f"{option}={value!r}" for option, value in options.items() if value is not None]
        if stray:
            raise ValueError(
                f"{', '.join(stray)} belongs to files and the hub, not to texts at hand"
            )
        if isinstance(dataset, Texts):
            held = {"text": pd.Series(dataset.texts, dtype=object), "label": dataset.labels}
            dataset = pd.DataFrame({"id": dataset.ids, **held})
        name, identity, table = "texts at hand", None, given.frame(dataset, text_column)
    else:
        name, paths, commit = _find(dataset, split, subset, revision)
        identity = f"commit {commit}" if commit else files.identity(paths)

    def read(size: int) -> Iterator[tuple[str, Text, Any]]:
        asked = (text_column or "text", answers, *(text_column or "").split(","))
        texts = {*filter(None, asked), *given.COLUMNS["text"]}.union(*given.PAIRS)
        tables = [table] if at_hand else chain(*(files.tables(path, size, texts) for path in paths))
        return given.read(
            tables, text_column, label_column, answers=answers, name=f"Data set {name!r}"
        )

    @cache  # a file is read, and what the limit leaves out is said, once
    def drawn() -> list[tuple[str, Text, Any]]:
        whole = [*read(1_024)]
        order = np.random.default_rng(seed).permutation(len(whole))[:limit]
        if len(order) < len(whole) and not at_hand and dataset not in {None, *OWN}:
            print(f"{limit} of {len(whole):,} texts (limit={limit})", file=sys.stderr)
        return [whole[i] for i in order]

    def first(size: int) -> Iterator[tuple[str, Text, Any]]:
        return islice(read(size) if seed is None else drawn(), limit)

    stream = TextStream(name, identity, first)
    # Of texts at hand there is no file that a run could be known again by.
    return stream if identity else replace(stream, identity=next(stream.parts(2**31)).identity)


def _find(
    dataset: str | Path | None, split: str | None, subset: str | None, revision: str | None
) -> tuple[str, list[Path], str | None]:
    """Return the name of a data set and split, its files, and its commit on the hub."""
    asked = "reviews" if dataset is None else str(dataset)
    if dataset in OWN and Path(asked).exists():
        said = (
            about("dataset", asked) + f" is this book's own; ./{asked} is the file or folder here"
        )
        warn(said, stacklevel=4)
    name, path, commit = files.find(
        str(OWN.get(asked, asked)), repository="dataset", parameter="dataset", revision=revision
    )
    if path.is_file():
        name = asked if asked in OWN else files.unpacked(path).stem
        places = {name: [path]}
    else:
        places = files.splits(path, subset, name)
    split = _choose(split, places, name)
    return name if split == name else f"{name} [{split}]", places[split], commit


def _choose(split: str | None, places: Mapping[str, Any], name: str) -> str:
    """Return the split to read; ValueError for one that is not there, or has to be named."""
    if split is None:  # training data are never the default
        known = [*places] if len(places) == 1 else ("validation", "test")
        split = next((one for one in known if one in places), None)
    if split is None or split not in places:
        problem = "needs a split" if split is None else f"has no split {split!r}"
        raise ValueError(f"Data set {name!r} {problem}: choose from {sorted(places)}")
    return split
