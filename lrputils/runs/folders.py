"""Files that are written whole, and folders in which a killed run goes on."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

PLAN, LOCK = "plan.json", "lock"
PARTS = "parts"  # in a plan that has been cut into shards: their digest
SHARD = ".rows.parquet"  # how a finished part's name ends
TEXTS = "texts.arrow"  # what a run over a data set reads
# What the system calls a full disk, or a file above the limit of its size (ulimit -f).
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a path to write to; when the block ends well, what is there replaces `path`.

    It is on the disk before it has the name, also where the power fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
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


def writable(folder: Path) -> Path:
    """Make a folder and see that it can be written, before anything is computed for it.

    Raises:
        OSError: it cannot, or is a file, or a link to nothing; the message names it.
    """
    if folder.is_symlink() and not folder.exists():
        raise OSError(
            f"{folder} is a link to {os.readlink(folder)}, which is not there; make that folder, "
            "or --out names another place"
        )
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
def locked(path: Path) -> Iterator[str]:
    """Hold a lock while the block runs; give "", or who has it, since when, if it is taken.

    The system frees the lock of a process that is killed.
    """
    lock, note = FileLock(path, timeout=0), path.with_name(f"{path.name}.holder")
    try:
        lock.acquire()
    except Timeout:
        yield note.read_text("utf-8") if note.is_file() else f"{path} is locked"
        return
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        note.write_text(f"process {os.getpid()} on {platform.node()}, since {since}", "utf-8")
        yield ""
    finally:
        note.unlink(missing_ok=True)
        lock.release()


@contextmanager
def alone(folder: Path, doing: str, place: Path | None = None) -> Iterator[None]:
    """Keep other processes out of a folder.

    Args:
        folder: where the lock lies.
        doing: "recording", "building", …
        place: what the message calls the folder, if something else.

    Raises:
        ValueError: another process is at it.
    """
    with locked(folder / LOCK) as holder:
        if holder:
            raise ValueError(
                f"another process is {doing} into {place or folder}: wait until it has ended, or "
                f"name another folder by --out ({holder})"
            )
        yield


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
    work = writable(work_folder(writable(out)))
    with alone(work, "recording", out):
        try:
            _agree_on(work, json.loads(json.dumps(plan)))
            yield work
            remove(work)
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


def remove(work: Path) -> None:
    """Remove the parts of a finished run: all of them, or nobody would go on with the rest."""
    done = work.with_name(f"{work.name}.done")
    shutil.rmtree(done, ignore_errors=True)  # of a process that was killed here
    if work.is_dir():
        os.replace(work, done)
        shutil.rmtree(done)


def read_plan(work: Path) -> dict[str, Any]:
    """Return the plan of the parts in a folder; {} without one, or if it is damaged."""
    try:
        return read_json(work / PLAN)
    except FileNotFoundError:
        return {}
    except ValueError:
        print(f"{work / PLAN} is damaged, and made again", file=sys.stderr)
        return {}


def _agree_on(work: Path, plan: dict[str, Any]) -> None:
    """Write down the plan; refuse to go on with parts of another one."""
    old = read_plan(work)
    if {**old, PARTS: None} != {**plan, PARTS: None}:
        for key in [*plan, *old] if old and any(work.glob(f"*{SHARD}")) else ():
            if old.get(key) != plan.get(key):
                raise ValueError(
                    f"{work} holds an unfinished recording with {key} = {old.get(key)}, now it is "
                    f"{plan.get(key)}: repeat the old command, or remove that folder"
                )
        (work / TEXTS).unlink(missing_ok=True)
        write_json(work / PLAN, plan)
