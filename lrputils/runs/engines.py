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

from lrputils.progress import bar
from lrputils.runs.folders import (
    FULL,
    LOCK,
    PARTS,
    PLAN,
    SHARD,
    TEXTS,
    alone,
    atomic_write,
    claimed,
    locked,
    read_plan,
    remove,
    work_folder,
    write_json,
)
from lrputils.runs.results import facts, key, settle, write

_PATIENCE = 0.2  # seconds between two looks at what the other ranks have done
_LONG = 60  # seconds of waiting after which it is said for whom


@dataclass(frozen=True)
class Shard:
    """A part of the work.

    Attributes:
        measure: returns the rows; called with what all shards share, and what `given` returns.
        given: returns what this one alone is measured on, when its turn has come.
        size: how many texts or networks.
        cost: which shards are begun first.
        digest: of what it is measured on.
    """

    measure: Callable[..., pd.DataFrame]
    given: Callable[[], tuple[Any, ...]] = tuple
    size: int = 1
    cost: float = 1.0
    digest: str = ""


# What measures shards, with what they share, and hands over the name, rows and seconds of each.
Engine = Callable[
    [Mapping[str, Shard], tuple[Any, ...], Callable[[str, pd.DataFrame, float], Any]], Any
]


def rank() -> int:
    """Return which of `torchrun`'s processes this is, from 0; 0 without `torchrun`."""
    return int(os.environ.get("RANK", 0))


def in_shards(
    out: str | Path,
    plan: Mapping[str, Any],
    cut: Callable[[Path], Mapping[str, Shard]],
    finish: Callable[[list[Path], float], tuple[pd.DataFrame | Sequence[Path], dict[str, Any]]],
    *,
    shared: tuple[Any, ...] = (),
    engine: Engine | None = None,
    unit: str = "texts",
    quiet: bool = False,
) -> Path:
    """Measure what is missing of a run, with the other ranks; the first rank writes it into `out`.

    `plan` decides the rows, as JSON can hold it. Given the folder of the shards, `cut` returns them
    by name, in their order; the first rank calls it before the others do. All are measured with
    what is `shared`, by an `engine` if there is one. Given the shards' files and the seconds they
    took, `finish` returns what `write` takes: the rows, or the files, and the provenance.

    Raises:
        ValueError: see `claimed`; or a shard was damaged after it had been written.
        OSError: the disk is full.
    """
    out, plan = Path(out), json.loads(json.dumps(plan))
    with _full_disk_told(out):
        if rank():
            work = work_folder(out)
            _sweep(work, _joined(out, plan, cut), set(), shared, lambda size: None)
            return out
        with claimed(out, plan) as work:
            todo = _agreed(work, plan, cut)
            done = {name for name, shard in todo.items() if _sound(_file(work, name), shard)}
            sizes = {name: shard.size for name, shard in todo.items()}
            options = {"total": sum(sizes.values()), "initial": sum(sizes[name] for name in done)}
            waiting = _Waiting()
            with bar(not quiet, log=True, desc="measured", unit=f" {unit}", **options) as shown:

                def kept(name: str, rows: pd.DataFrame, seconds: float) -> None:
                    _keep(_file(work, name), todo[name], rows, seconds)
                    done.add(name)
                    shown.update(sizes[name])

                if engine:
                    engine({name: todo[name] for name in todo if name not in done}, shared, kept)
                while holder := _sweep(work, todo, done, shared, shown.update):
                    waiting.wait(holder)
            paths = {_file(work, name): shard for name, shard in todo.items()}
            rows, told = finish([*paths], sum(_seconds(path, paths[path]) for path in paths))
            return write(out, rows, {**told, "plan": key(plan)})


def recover(out: Path) -> None:
    """Finish what a process that was killed at the end of a run had begun.

    Rows and provenance that were written whole come into their places, and the parts of a run that
    is finished go away.

    Raises:
        ValueError: another process works there.
    """
    work = work_folder(out)
    if not work.is_dir():
        remove(work)
        return
    with alone(work, "recording", out):
        settle(out)
        plan = read_plan(work)
        plan.pop(PARTS, None)
        with suppress(FileNotFoundError):
            if facts(out).get("plan") == key(plan):
                remove(work)


def _agreed(
    work: Path, plan: Mapping[str, Any], cut: Callable[[Path], Mapping[str, Shard]]
) -> Mapping[str, Shard]:
    """Cut a run into shards, those that were agreed on before; else from texts that are read again.

    From then on the plan in the folder has their digest, and other ranks begin.
    """
    if told := read_plan(work).get(PARTS):
        with suppress(pa.ArrowException, OSError):
            if _digest(todo := cut(work)) == told:
                return todo
        print(f"{work / TEXTS} is damaged, and made again", file=sys.stderr)
    (work / TEXTS).unlink(missing_ok=True)
    todo = cut(work)
    write_json(work / PLAN, {**plan, PARTS: _digest(todo)})
    return todo


def _digest(todo: Mapping[str, Shard]) -> str:
    return key({name: shard.digest for name, shard in todo.items()})


def _joined(
    out: Path, plan: Mapping[str, Any], cut: Callable[[Path], Mapping[str, Shard]]
) -> Mapping[str, Shard]:
    """Wait until the first rank is ready; return the shards, none if all is finished."""
    work, waiting = work_folder(out), _Waiting()
    while True:
        agreed = read_plan(work)
        if (told := agreed.pop(PARTS, None)) and agreed == plan:
            with suppress(pa.ArrowException, OSError):  # the first rank makes it again
                if _digest(todo := cut(work)) == told:
                    return todo
        with suppress(FileNotFoundError):
            if facts(out).get("plan") == key(plan):
                return {}
        waiting.wait(f"the first rank, which has {work / LOCK} while it works")


class _Waiting:
    """Looks again after a while, and says once for whom it has waited if that takes long."""

    def __init__(self) -> None:
        self._whom, self._since = "", 0.0

    def wait(self, whom: str) -> None:
        if whom != self._whom:
            self._whom, self._since = whom, time.monotonic()
        elif time.monotonic() - self._since > _LONG:
            print(f"waiting for {whom}", file=sys.stderr)
            self._since = float("inf")
        time.sleep(_PATIENCE)


def _sweep(
    work: Path,
    todo: Mapping[str, Shard],
    done: set[str],
    shared: tuple[Any, ...],
    told: Callable[[int], Any],
) -> str:
    """Measure the shards that nobody has; return who has one, "" if all are there.

    Several ranks end together if the costliest shards come first; one goes by the shards' order.
    """
    several, holder = int(os.environ.get("WORLD_SIZE", 1)) > 1, ""
    for name in sorted(todo, key=lambda name: -todo[name].cost) if several else todo:
        if name not in done:
            if other := _take(work, name, todo[name], shared):
                holder = holder or f"shard {name}: {other}"
            else:
                done.add(name)
                told(todo[name].size)
    return holder


def _take(work: Path, name: str, shard: Shard, shared: tuple[Any, ...]) -> str:
    """Measure a shard unless it is there; return who has it if another process does."""
    path = _file(work, name)
    if path.is_file():
        return ""
    if not (work / PLAN).is_file():
        return "finished, and cleared away"
    with locked(work / f"{name}.lock") as holder:
        if holder:
            return holder
        if not (work / PLAN).is_file():  # just now: the lock has made the folder again
            shutil.rmtree(work, ignore_errors=True)
        elif not path.is_file():
            began = time.monotonic()
            rows = shard.measure(*shared, *shard.given())
            _keep(path, shard, rows, time.monotonic() - began)
    return ""


def _keep(path: Path, shard: Shard, rows: pd.DataFrame, seconds: float) -> None:
    """Write a shard's rows, with what they were measured on."""
    rows.attrs = {"seconds": seconds, "digest": shard.digest, "name": path.name}
    with atomic_write(path) as partial:
        rows.to_parquet(partial, index=False, write_page_checksum=True)


def _file(work: Path, name: str) -> Path:
    return work / f"{name}{SHARD}"


def _sound(path: Path, shard: Shard) -> bool:
    """Return whether a shard is there; one that is damaged is taken away, and said so."""
    if not path.is_file():
        return False
    try:
        pq.read_table(path, page_checksum_verification=True)
        _seconds(path, shard)
    except (ValueError, OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        print(f"{path} is damaged and measured again ({reason})", file=sys.stderr)
        path.unlink()
        return False
    return True


def _seconds(path: Path, shard: Shard) -> float:
    """Return the seconds that a shard took; ValueError if these are not its rows."""
    told = json.loads((pq.read_schema(path).metadata or {}).get(b"PANDAS_ATTRS", b"{}"))
    if (told.get("name"), told.get("digest")) != (path.name, shard.digest):
        raise ValueError(f"{path} holds other rows: the same command measures it again")
    return told["seconds"]


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
