"""Files that are written whole, and folders that can be written."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUN = "run.json"  # what a run is of, in its folder
# What the system calls a full disk, or a file above the limit of its size (ulimit -f).
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends well, what is there replaces `path`.

    It is on the disk before it has the name, also where the power fails. Two processes that write
    the same file do so one beside the other, and readers of a folder skip a name with a dot.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with partial.open("rb+") as written:
            os.fsync(written.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write facts as JSON, the whole file or nothing."""
    with atomic_write(path) as partial:
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged; the message names it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove it, and the same command makes it again"
        ) from error


def digest(held: Any) -> str:
    """Return the digest of what JSON can hold; of anything else, of how it is written."""
    return hashlib.sha256(json.dumps(held, sort_keys=True, default=str).encode()).hexdigest()


def writable(folder: Path) -> Path:
    """See that a folder can be written, or made, before anything is computed for it.

    Raises:
        OSError: it cannot, or is a file, or a link to nothing; the message names it.
    """
    if folder.is_symlink() and not folder.exists():
        raise OSError(
            f"{folder} is a link to {os.readlink(folder)}, which is not there; make that folder, "
            "or --out names another place"
        )
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with disk_told(folder), tempfile.TemporaryFile(dir=there):
        return folder


@contextmanager
def disk_told(folder: Path) -> Iterator[None]:
    """Say in a sentence that a disk is full or closed to writing, and what to do.

    Raises:
        OSError: of the block; where the system has a reason that a user can mend, in a sentence.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            said = (
                f"the disk of {folder} is full, or its files' size is limited: make room and give "
                "the same command again; what had been finished is kept"
            )
        elif isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
            said = f"{folder} cannot be written: {error.strerror}; --out names another place"
        else:
            raise
        raise OSError(said) from error
