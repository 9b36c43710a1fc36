"""Texts of a data set that are read while they are used, in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from lrputils.data import files, given
from lrputils.data.texts import Texts, check_text, find_columns, load_texts, locate


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
        numbers = range(len(whole))
        parts = lambda size: (whole.take(numbers[i : i + size]) for i in numbers[::size])  # noqa: E731
        return TextStream(whole.name, whole.identity, parts)
    name, paths, commit = locate(dataset, split, None, None)
    identity = f"commit {commit}" if commit else files.digest(files.blocks(paths))

    def parts(size: int) -> Iterator[Texts]:
        records = islice(_records(paths, name, **wanted), limit)
        while part := [*islice(records, size)]:
            ids, texts, labels = zip(*part, strict=True)
            yield Texts(texts, labels, ids, name, identity)

    return TextStream(name, identity, parts)


def _records(
    paths: Iterable[Path], name: str, text_column: str | None, label_column: str | None
) -> Iterator[tuple[str, str, Any]]:
    """Yield the identifier, text and label of each row, the label None where there is none."""
    row = 0
    plain = [*given.COLUMNS["text"], *([text_column] if text_column else [])]
    for path in paths:
        for table in files.parts(path, 1_024, plain):
            text, label, identifier = find_columns(table, text_column, label_column, name)
            numbers = range(row, row := row + len(table))
            ids = numbers if identifier is None else table[identifier].tolist()
            labels = repeat(None) if label is None else table[label].tolist()
            for number, identity, value, known in zip(numbers, ids, table[text], labels):  # noqa: B905
                check_text(number, value, text, name)
                yield str(identity), value, known
    if not row:
        raise ValueError(f"Data set {name!r} holds no texts")
