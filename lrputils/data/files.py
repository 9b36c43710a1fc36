"""Where data sets and models are, on disk or on the Hugging Face hub, and what stands in a file.

One request says whether the hub can be reached and which commit a revision means; the files then
come from the hub or, without a network, from the local cache. What follows works on a folder and
never waits for a network.

One file is read by pandas, which is there already; the `datasets` library would keep a copy in its
cache and take an "NA" for a missing value. What a folder's splits are, `datasets` knows; it reads
what its `save_to_disk` wrote, too.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal, TextIO
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lrputils.mistakes import about, plainly

Tables = Iterator[pd.DataFrame]
_PATIENCE = 6.0
_MOST = 2**28  # bytes that a packed file may unpack to, whatever its size
_PACKED = ".gz", ".zip"
_NONE = "\x1f"  # separates nothing: a line of a table of one column is a text
_WEIGHTS = ".safetensors", ".bin"
_SMALL_FILES = ".json", ".txt", ".model"
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(@[\w./-]+)?")


def _separated(file: TextIO, rows: int, texts: Iterable[str]) -> Tables:
    """Read a table whose first line tells what separates its columns."""
    names = re.sub(r'"[^"]*"', "", file.readline())
    file.seek(0)
    found = max(",;\t|", key=names.count)
    return pd.read_csv(
        file,
        sep=found if found in names else _NONE,
        keep_default_na=False,
        na_values=[""],
        index_col=False,
        chunksize=rows,
        dtype=dict.fromkeys(texts, str),
    )


def _json(file: TextIO, rows: int, texts: Iterable[str]) -> Iterable[pd.DataFrame]:
    """Read one JSON value, or one a line."""
    try:
        return [pd.read_json(file, dtype=False)]
    except ValueError:
        file.seek(0)
        return _json_lines(file, rows, texts)


def _json_lines(file: TextIO, rows: int, _: Any) -> Tables:
    return pd.read_json(file, lines=True, chunksize=rows, dtype=False)


def _lines(file: TextIO, rows: int, _: Any) -> Tables:
    while lines := [*islice(file, rows)]:
        yield pd.DataFrame({"text": [line.strip() for line in lines if line.strip()]})


def kind(path: str | Path) -> str | None:
    """Return which of `READABLE` a file's name ends in, plain or packed; None if in none."""
    ending = unpacked(path).suffix.lower()
    return ending if ending in READABLE else None


def unpacked(path: str | Path) -> Path:
    """Return what a file is called once it is unpacked."""
    path = Path(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return Path(_alone(path))
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _alone(path: Path) -> str:
    """Return the name of the only file in an archive, hidden ones left out."""
    try:
        with ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    except BadZipFile as error:
        raise ValueError(about("dataset", str(path)) + f" cannot be read: {error}") from error
    names = [name for name in names if "/." not in f"/{name}"]
    if len(names) != 1:
        raise ValueError(
            about("dataset", str(path)) + f" holds {len(names)} files: unpack it, and name one"
        )
    return names[0]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, plain or packed, for reading."""
    if path.suffix.lower() == ".zip":
        with ZipFile(path) as archive, archive.open(_alone(path)) as file:
            yield file
    else:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            yield file


def _bounded(size: int, packed: int) -> None:
    """Refuse what unpacks to more than memory may hold, and to more than any texts do."""
    if size > max(_MOST, 100 * packed):
        raise ValueError(
            f"{packed:,} bytes of it unpack to more than {_MOST >> 20} MB: unpack it yourself if "
            "these are texts"
        )


def _text(path: Path, rows: int, texts: Iterable[str]) -> Tables:
    packed, size = path.stat().st_size, 0
    with _opened(path) as file:
        while path.suffix.lower() in _PACKED and (content := file.read(2**20)):
            size += len(content)
            _bounded(size, packed)
    with _opened(path) as file, TextIOWrapper(file, encoding="utf-8-sig") as lines:
        yield from _TEXT_READERS[kind(path)](lines, rows, texts)


def _parquet(path: Path, rows: int, _: Any) -> Tables:
    held = pq.ParquetFile(path)
    for group in map(held.metadata.row_group, range(held.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            _bounded(column.total_uncompressed_size, column.total_compressed_size)
    return (part.to_pandas() for part in held.iter_batches(rows))


def _arrow(path: Path, *_: Any) -> Tables:
    """Read what `datasets` or pyarrow wrote, as a stream or as a file: a stream after 8 bytes."""
    with path.open("rb") as file:
        file.seek(8 if file.read(6) == b"ARROW1" else 0)
        for batch in pa.ipc.open_stream(file):
            # After: pyarrow tells no size before. Too much is then one batch, never the file.
            _bounded(batch.nbytes, path.stat().st_size)
            yield batch.to_pandas()


_TEXT_READERS: dict[str, Callable[..., Iterable[pd.DataFrame]]] = {
    ".csv": _separated,
    ".tsv": _separated,
    ".txt": _lines,
    ".json": _json,
    ".jsonl": _json_lines,
}
_TABLE_READERS = {".parquet": _parquet, ".arrow": _arrow}
READABLE = (*_TEXT_READERS, *_TABLE_READERS)


def _readable(name: str) -> bool:
    """Tell a data file by its name in its folder; hidden ones are none."""
    return kind(name) is not None and "/." not in f"/{name}"


def tables(path: Path, rows: int, texts: Iterable[str]) -> Tables:
    """Yield a file's table, about so many rows at a time; one value of JSON is read whole.

    The columns `texts` of a separated file hold strings, even where a part has only digits there;
    a line of a `.txt` file is a text. ValueError for what cannot be read.
    """
    where, ending = about("dataset", str(path)), kind(path)
    if ending is None:
        raise ValueError(
            where + f": cannot read this; it may be {', '.join(READABLE)}, each also as .gz, or "
            "alone in a .zip"
        )
    try:
        with warnings.catch_warnings():
            # More values than columns: pandas would warn and drop the last ones.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield from _TABLE_READERS.get(ending, _text)(path, rows, texts)
    except UnicodeError as error:
        raise ValueError(
            where + " is not UTF-8 text: save it as UTF-8, or read it with pandas (encoding="
            "'latin-1', for example) and pass the table"
        ) from error
    except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
        line = re.search(r" in line \d+", str(error))
        raise ValueError(
            where + f" cannot be read: the values{line[0] if line else ''} are not as many as the "
            "columns. A text that holds what separates them stands in quotes"
        ) from error
    except Exception as error:  # pandas raises a different class for each way of being malformed
        said = str(error).strip().splitlines()[0]
        raise ValueError(where + f" cannot be read: {said}") from error


def contents(paths: Iterable[Path]) -> Iterator[np.ndarray]:
    """Return the bytes of each file that has any, which are read when they are looked at."""
    return (np.memmap(path, mode="r") for path in paths if path.stat().st_size)


def digest(contents: Iterable[Any]) -> str:
    """Return "sha256 …" of these contents, one after the other."""
    whole = hashlib.sha256()
    for content in contents:
        whole.update(content)
    return f"sha256 {whole.hexdigest()}"


def identity(paths: Sequence[Path]) -> str:
    """Return the digest of a file; of several one of their names and digests."""
    each = [digest(contents([path])) for path in paths]
    named = (f"{path.name} {own}\n".encode() for path, own in zip(paths, each, strict=True))
    return each[0] if len(each) == 1 else digest(named)


def inside(folder: Path, path: str | Path) -> Path:
    """Return a path that a folder's own files name, if it lies in the folder.

    Links are not followed: the hub's cache is made of them.

    Raises:
        ValueError: it lies elsewhere, or is an address.
    """
    place = Path(os.path.normpath(folder.absolute() / path))
    if "://" in str(path) or not place.is_relative_to(os.path.normpath(folder.absolute())):
        raise ValueError(f"{folder} names {path}, which lies outside of it and is not read")
    return place


def splits(folder: Path, subset: str | None, name: str) -> dict[str, list[Path]]:
    """Return a folder's data files by split, as `datasets` finds them.

    It reads the configurations of a README, or looks for train, test and validation in the names of
    files and folders; files whose names say nothing of it are one split, "train". What its
    `save_to_disk` wrote names them itself.
    FileNotFoundError without data; ValueError for a `subset` that is none of the configurations, or
    missing where there are several.
    """
    if not any(_readable(str(path.relative_to(folder))) for path in folder.rglob("*.*")):
        raise FileNotFoundError(
            about("dataset", name) + f" holds no {', '.join(READABLE)} file (looked in {folder})"
        )
    import datasets  # here: a single file needs none of it

    place = str(folder.absolute())
    if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        with plainly(f"Data set {name!r}"):
            held = datasets.load_from_disk(place)
        held = held if isinstance(held, dict) else {str(held.split or "train"): held}
        return {
            name: [inside(folder, one["filename"]) for one in part.cache_files]
            for name, part in held.items()
        }
    card = folder / "README.md"
    front = card.read_text("utf-8", errors="replace").split("\n---")[0] if card.is_file() else ""
    with plainly(str(card)):
        events = [*yaml.parse(front)] if front.startswith("---") else []
    if any(isinstance(event, yaml.AliasEvent) for event in events):  # they multiply without end
        raise ValueError(f"{card} has an alias (*name): write the value out")
    with plainly(f"Data set {name!r}"):
        known = datasets.get_dataset_config_names(place)
    if subset not in known and (subset is not None or len(known) > 1):
        problem = "holds several subsets" if subset is None else f"has no subset {subset!r}"
        raise ValueError(f"Data set {name!r} {problem}: choose from {known}")
    # Its builder locks a file in its cache.
    with TemporaryDirectory() as elsewhere, plainly(f"Data set {name!r}"):
        config = datasets.load_dataset_builder(place, subset, cache_dir=elsewhere).config
    return {
        str(split): sorted(inside(folder, path) for path in paths)
        for split, paths in config.data_files.items()
    }


def is_path(name: str) -> bool:
    """Say whether `name` is meant as a file or folder rather than as a repository of the hub."""
    packed = name.lower().endswith(".zip")
    if Path(name).expanduser().exists() or kind(name) or packed or not _NAME.fullmatch(name):
        return True
    first = name.split("/")[0]
    return first in ("", ".", "..", "~") or ("/" in name and Path(first).is_dir())


def find(
    name: str,
    *,
    repository: Literal["model", "dataset"],
    parameter: str,
    revision: str | None = None,
) -> tuple[str, Path, str | None]:
    """Return the name of a file, folder or repository, where it is, and a repository's commit.

    The name is a path, or `owner/name` or `owner/name@revision` on the hub; errors name the
    caller's `parameter`. Of a repository only the files that are read here are downloaded.

    Raises:
        FileNotFoundError: no such path, and no such repository on the hub.
        PermissionError: the repository asks for a log-in.
        ValueError: it has no such revision, or a path was given one.
        ConnectionError: the hub cannot be reached and the cache does not hold the repository.
    """
    if is_path(name):
        path = Path(name).expanduser()
        if revision is not None:
            raise ValueError(
                f"revision={revision!r} belongs to the hub, but {name!r} is a local path"
            )
        if not path.exists():
            raise FileNotFoundError(
                about(parameter, name)
                + f": there is no such file or folder (looked in {Path.cwd()})"
            )
        return path.resolve().name, path, None
    name, _, pinned = name.partition("@")
    if pinned and revision not in (None, pinned):
        raise ValueError(f"{name}@{pinned} and revision={revision!r} name two revisions: drop one")
    revision = revision or pinned or None
    instead = "; `" + about(parameter) + "` also takes a local folder"
    asked = {"repo_type": repository, "revision": revision, "timeout": _PATIENCE}
    try:
        with ThreadPool(1) as pool:  # name resolution has no time limit of its own
            found = pool.apply_async(HfApi().repo_info, (name,), asked).get(_PATIENCE)
    except GatedRepoError as error:
        raise PermissionError(
            f"The hub's {repository} {name!r} asks for a log-in" + instead
        ) from error
    except RevisionNotFoundError as error:
        raise ValueError(f"The hub's {repository} {name!r} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"{name!r} is neither a folder here nor a public {repository} on the hub" + instead
        ) from error
    except Exception as error:  # any error of the transport: the hub did not answer
        reason = str(error) or f"no answer within {_PATIENCE:.0f} s"
        try:
            local = Path(
                snapshot_download(
                    name, repo_type=repository, revision=revision, local_files_only=True
                )
            )
        except LocalEntryNotFoundError:
            raise ConnectionError(
                f"{repository.capitalize()} {name!r} is not a folder here, is not in the local "
                f"cache, and the hub cannot be reached ({type(error).__name__}: {reason})" + instead
            ) from None
        return name, local, local.name
    names = [entry.rfilename for entry in found.siblings or ()]
    # Of data also the README, which says which files are which split.
    files = [name for name in names if name == "README.md" or _readable(name)]
    files = _needed(names) if repository == "model" else files
    folder = snapshot_download(name, repo_type=repository, revision=found.sha, allow_patterns=files)
    return name, Path(folder), found.sha


def find_model(
    name: str, revision: str | None = None, *, parameter: str = "model"
) -> tuple[str, Path, str | None]:
    """`find` a model; refuse a PEFT adapter, and a folder without a config.json."""
    found = find(name, repository="model", parameter=parameter, revision=revision)
    if (found[1] / "adapter_config.json").is_file():
        raise ValueError(
            about(parameter, name) + " holds a PEFT adapter: load it with its base model, call "
            "merge_and_unload(), and save that model and its tokenizer by `save_pretrained`"
        )
    if not (found[1] / "config.json").is_file():
        raise FileNotFoundError(
            about(parameter, name) + " holds no config.json: it is not a model folder as "
            "`save_pretrained` writes it"
        )
    return found


def _needed(names: Sequence[str]) -> list[str]:
    """Choose what to download of a model: small files, and the weights in one format."""
    top = [name for name in names if "/" not in name]
    formats = ((suffix, f"{suffix}.index.json") for suffix in _WEIGHTS)
    weights = [[name for name in top if name.endswith(endings)] for endings in formats]
    others = [name for name in top if name.endswith(_SMALL_FILES) and ".index." not in name]
    return sorted({*next(filter(None, weights), []), *others})
