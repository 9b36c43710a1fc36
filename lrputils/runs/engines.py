"""Who measures the shards of a run: this process, or every rank of `torchrun`.

What is measured is kept, and several processes may share what is left. A shard is one Parquet file,
written whole or not at all, so a killed run goes on by the same command and loses at most the
shards that were open. Under `torchrun` every rank takes the costliest shard that
nobody has, and holds its lock, which the system frees when the process dies. There is no other
exchange between ranks: one that is lost costs its open shard. The first rank puts the shards
together, in their order, so that the rows do not depend on who measured what.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from lrputils.progress import bar
from lrputils.runs.folders import FULL, PLAN, READY, SHARD, atomic_write, claimed, work_folder
from lrputils.runs.results import facts, key, write

_PATIENCE = 0.2  # seconds between two looks at what the other ranks have done


@dataclass(frozen=True)
class Shard:
    """A part of the work: what measures its rows, how many texts or networks, and its cost."""

    measure: Callable[[], pd.DataFrame]
    size: int = 1
    cost: float = 1.0


def rank() -> int:
    """Return which of `torchrun`'s processes this is, from 0; 0 without `torchrun`."""
    return int(os.environ.get("RANK", 0))


def in_shards(
    out: str | Path,
    plan: Mapping[str, Any],
    cut: Callable[[Path], Mapping[str, Shard]],
    finish: Callable[[list[Path], float], tuple[pd.DataFrame | Sequence[Path], dict[str, Any]]],
    *,
    unit: str = "texts",
    quiet: bool = False,
) -> Path:
    """Measure what is missing of a run, with the other ranks; the first rank writes it into `out`.

    `plan` decides the rows, as JSON can hold it. Given the folder of the shards, `cut` returns them
    by name, in their order; the first rank calls it before the others do. Given the shards' files
    and the seconds they took, `finish` returns what `write` takes: the rows,
    or the files, and the provenance.

    Raises:
        ValueError: see `claimed`; or a shard was damaged after it had been written.
        OSError: the disk is full.
    """
    out = Path(out)
    with _full_disk_told(out):
        if rank():
            if work := _joined(out, plan):
                _sweep(work, cut(work), set(), lambda size: None)
            return out
        with claimed(out, plan) as work:
            todo = cut(work)
            done = {name for name in todo if _sound(_file(work, name))}
            (work / READY).touch()
            sizes = {name: shard.size for name, shard in todo.items()}
            options = {"total": sum(sizes.values()), "initial": sum(sizes[name] for name in done)}
            with bar(not quiet, log=True, desc="measured", unit=f" {unit}", **options) as shown:
                while not _sweep(work, todo, done, shown.update):
                    time.sleep(_PATIENCE)
            paths = [_file(work, name) for name in todo]
            rows, told = finish(paths, sum(map(_seconds, paths)))
            return write(out, rows, {**told, "plan": key(plan)})


def _joined(out: Path, plan: Mapping[str, Any]) -> Path | None:
    """Wait until the first rank is ready; return the folder of shards, None if all is finished."""
    work, plan = work_folder(out), json.loads(json.dumps(plan))
    while True:
        with suppress(FileNotFoundError):
            agreed = json.loads((work / PLAN).read_text(encoding="utf-8")) == plan
            if agreed and (work / READY).is_file():
                return work
        with suppress(FileNotFoundError):
            if facts(out).get("plan") == key(plan):
                return None
        time.sleep(_PATIENCE)


def _sweep(
    work: Path, todo: Mapping[str, Shard], done: set[str], told: Callable[[int], Any]
) -> bool:
    """Measure the shards that nobody has; return whether all are there.

    Several ranks end together if the costliest shards come first; one goes by the shards' order.
    """
    shared = int(os.environ.get("WORLD_SIZE", 1)) > 1
    for name in sorted(todo, key=lambda name: -todo[name].cost) if shared else todo:
        if name not in done and _taken(work, name, todo[name]):
            done.add(name)
            told(todo[name].size)
    return len(done) == len(todo)


def _taken(work: Path, name: str, shard: Shard) -> bool:
    """Measure a shard unless it is there or another process has it; return whether it is there."""
    path = _file(work, name)
    if path.is_file():
        return True
    if not (work / PLAN).is_file():  # finished, and cleared away
        return False
    with suppress(Timeout), FileLock(work / f"{name}.lock", timeout=0):
        if not (work / PLAN).is_file():  # just now: the lock has made the folder again
            shutil.rmtree(work, ignore_errors=True)
        elif not path.is_file():
            began = time.monotonic()
            rows = shard.measure()
            rows.attrs["seconds"] = time.monotonic() - began
            with atomic_write(path) as partial:
                rows.to_parquet(partial, index=False, write_page_checksum=True)
    return path.is_file()


def _file(work: Path, name: str) -> Path:
    return work / f"{name}{SHARD}"


def _sound(path: Path) -> bool:
    """Return whether a shard is there; one that cannot be read is taken away, and said so."""
    if not path.is_file():
        return False
    try:
        pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        print(f"{path} is damaged and measured again ({reason})", file=sys.stderr)
        path.unlink()
        return False
    return True


def _seconds(path: Path) -> float:
    return json.loads(pq.read_schema(path).metadata[b"PANDAS_ATTRS"])["seconds"]


@contextmanager
def _full_disk_told(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            f"the disk of {out} is full, or its files' size is limited: make room and give the "
            "same command again; the shards that were finished are kept"
        ) from error
