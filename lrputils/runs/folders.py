"""Files that are written whole, and folders in which a killed run goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

PLAN, READY, _LOCK = "plan.json", "ready", "lock"
SHARD = ".rows.parquet"  # how a finished part's name ends
TEXTS = "texts.arrow"  # what a run over a data set reads
# What the system calls a full disk, or a file above the limit of its size (ulimit -f).
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends well, what is there replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write facts as JSON, the whole file or nothing."""
    with atomic_write(path) as partial:
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        partial.write_text(f"{text}\n", encoding="utf-8")


def writable(folder: Path) -> Path:
    """Make a folder and see that it can be written, before anything is computed for it.

    Raises:
        OSError: it cannot, or is a file; the message names it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in FULL:
            raise
        reason = f"{folder} cannot be written: {error.strerror}"
        raise OSError(f"{reason}; --out names another place") from None
    return folder


@contextmanager
def alone(folder: Path, doing: str, place: Path | None = None) -> Iterator[None]:
    """Keep other processes out of a folder; the system frees the lock of a killed one.

    Args:
        folder: where the lock lies.
        doing: "recording", "building", …
        place: what the message calls the folder, if something else.

    Raises:
        ValueError: another process is at it.
    """
    try:
        with FileLock(folder / _LOCK, timeout=0):
            yield
    except Timeout:
        raise ValueError(
            f"another process is {doing} into {place or folder}: wait until it has ended, or name "
            "another folder by --out"
        ) from None


@contextmanager
def claimed(out: Path, plan: Mapping[str, Any]) -> Iterator[Path]:
    """Claim `out` for this process; give the folder for the parts of a run.

    A killed run leaves its finished parts there, and the same `plan`, all that decides the parts,
    as JSON can hold it, goes on with them. What ends without a finished part leaves nothing, and
    the system frees the lock of a killed process. The folder is removed when the block ends well.

    Raises:
        ValueError: `out` is a file, another process holds it, or parts of another plan lie there.
    """
    if out.is_file():
        raise ValueError(f"{out} is a file: name a folder")
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    work = writable(work_folder(out))
    with alone(work, "recording", out):
        try:
            _agree_on(work, json.loads(json.dumps(plan)))
            yield work
            os.replace(work, done := work.with_name(f"{work.name}.done"))  # or a half of it went on
            shutil.rmtree(done)
        except BaseException:
            if not any(work.glob(f"*{SHARD}")):
                shutil.rmtree(work)
                with suppress(OSError):  # something else was put there
                    for folder in missing:
                        folder.rmdir()
            raise


def work_folder(out: Path) -> Path:
    """Return where the parts of an unfinished run lie."""
    return out / "shards"


def _agree_on(work: Path, plan: dict[str, Any]) -> None:
    """Write down the plan; refuse to go on with parts of another one."""
    path = work / PLAN
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if old != plan:
        for key in [*plan, *old] if any(work.glob(f"*{SHARD}")) else ():
            if old.get(key) != plan.get(key):
                raise ValueError(
                    f"{work} holds an unfinished recording with {key} = {old.get(key)}, now it is "
                    f"{plan.get(key)}: repeat the old command, or remove that folder"
                )
        for leftover in (READY, TEXTS):
            (work / leftover).unlink(missing_ok=True)
        write_json(path, plan)
