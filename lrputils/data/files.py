"""Tables of texts on disk: which splits a folder holds, and what stands in a file.

One file is read by pandas, which is there already; the `datasets` library would keep a copy in its
cache and take an "NA" for a missing value. What a folder's splits are, `datasets` knows.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import pandas as pd
import pyarrow.parquet as pq

Tables = Iterator[pd.DataFrame]


def _separated(file: TextIO, rows: int, texts: Iterable[str]) -> Tables:
    """Read a table whose first line tells what separates its columns."""
    names = re.sub(r'"[^"]*"', "", file.readline())
    file.seek(0)
    return pd.read_csv(
        file,
        sep=max(",;\t|", key=names.count),
        keep_default_na=False,
        na_values=[""],
        index_col=False,
        chunksize=rows,
        dtype=dict.fromkeys(texts, str),
    )


def _json(file: TextIO, *_: Any) -> Tables:
    """Read one JSON value, or one a line."""
    try:
        yield pd.read_json(file)
    except ValueError:
        file.seek(0)
        yield pd.read_json(file, lines=True)


def _json_lines(file: TextIO, rows: int, _: Any) -> Tables:
    return pd.read_json(file, lines=True, chunksize=rows)


def _lines(file: TextIO, rows: int, _: Any) -> Tables:
    while lines := [*islice(file, rows)]:
        yield pd.DataFrame({"text": [line.strip() for line in lines if line.strip()]})


_TEXT_READERS: dict[str, Callable[..., Tables]] = {
    ".csv": _separated,
    ".tsv": _separated,
    ".txt": _lines,
    ".json": _json,
    ".jsonl": _json_lines,
}
READABLE = (*_TEXT_READERS, ".parquet")
_PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def kind(path: str | Path) -> str | None:
    """Return which of `READABLE` a file's name ends in, compressed or not; None if in none."""
    ending = _unpacked(path).suffix.lower()
    return ending if ending in READABLE else None


def stem(path: Path) -> str:
    """Return a file's name without its ending, compressed or not."""
    return _unpacked(path).stem


def _unpacked(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix.lower() in _PACKED else path


def readable(name: str) -> bool:
    """Tell a data file by its name in its folder; hidden ones are none."""
    return kind(name) is not None and "/." not in f"/{name}"


def tables(path: Path, rows: int, texts: Iterable[str]) -> Tables:
    """Yield a file's table, about so many rows at a time; one value of JSON is read whole.

    The columns `texts` of a separated file hold strings, even where a part has only digits there;
    a line of a `.txt` file is a text. ValueError for what cannot be read.
    """
    where, ending = f"dataset={str(path)!r}", kind(path)
    if ending is None:
        raise ValueError(
            f"{where}: cannot read this; it may be {', '.join(READABLE)}, each also as .gz"
        )
    try:
        if ending == ".parquet":
            yield from (batch.to_pandas() for batch in pq.ParquetFile(path).iter_batches(rows))
            return
        with (
            _PACKED.get(path.suffix.lower(), open)(path, "rt", encoding="utf-8-sig") as file,
            warnings.catch_warnings(),
        ):
            # More values than columns: pandas would warn and drop the last ones.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield from _TEXT_READERS[ending](file, rows, texts)
    except UnicodeError as error:
        raise ValueError(
            f"{where} is not UTF-8 text: save it as UTF-8, or read it with pandas (encoding="
            f"'latin-1', for example) and pass the table"
        ) from error
    except Exception as error:  # pandas raises a different class for each way of being malformed
        raise ValueError(f"{where} cannot be read: {str(error).strip().splitlines()[0]}") from error


def blocks(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the files' contents, one after the other, a megabyte at a time."""
    for path in paths:
        with path.open("rb") as file:
            yield from iter(partial(file.read, 2**20), b"")


def digest(contents: Iterable[Any]) -> str:
    """Return "sha256 …" of these contents, one after the other."""
    whole = hashlib.sha256()
    for content in contents:
        whole.update(content)
    return f"sha256 {whole.hexdigest()}"


def splits(folder: Path, subset: str | None, name: str) -> dict[str, list[Path]]:
    """Return a folder's data files by split.

    `datasets` reads its README's configurations and finds train, test and validation in the names
    of files and folders; a file that it assigns to none of them is a split of its own name.
    FileNotFoundError without data; ValueError for a `subset` that is none of the configurations, or
    missing where there are several.
    """
    below = (str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    names = [name for name in below if readable(name)]
    files = sorted(folder.absolute() / name for name in names)
    if not files:
        raise FileNotFoundError(
            f"dataset={name!r} holds no {', '.join(READABLE)} file (looked in {folder})"
        )
    found, plain = _known_splits(folder, subset, name)
    if set(found) == {"train"} and not any("train" in name for name in names):
        found = {}  # what `datasets` calls any file whose name says nothing
    assigned = [path for paths in found.values() for path in paths]
    kinds = {kind(path) for path in assigned or files}
    for path in files if plain else ():
        if path not in assigned and kind(path) in kinds:  # not a table's JSON of metadata
            found.setdefault(stem(path), []).append(path)
    return found


def _known_splits(
    folder: Path, subset: str | None, name: str
) -> tuple[dict[str, list[Path]], bool]:
    """Return what `datasets` finds, and whether it went by names alone, as no README says more."""
    import datasets  # here: a single file needs none of it

    with TemporaryDirectory() as elsewhere:  # its builder locks a file in its cache
        try:
            config = datasets.load_dataset_builder(
                str(folder.absolute()), subset, cache_dir=elsewhere
            ).config
        except FileNotFoundError:  # no file whose name or kind it knows
            return {}, True
        except ValueError as error:
            names = datasets.get_dataset_config_names(str(folder.absolute()))
            problem = "holds several subsets" if subset is None else f"has no subset {subset!r}"
            raise ValueError(f"Data set {name!r} {problem}: choose from {names}") from error
    found = {str(split): sorted(map(Path, paths)) for split, paths in config.data_files.items()}
    return found, config.name == "default"
