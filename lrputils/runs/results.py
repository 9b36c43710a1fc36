"""Recorded runs: a row per example and method, and where the rows come from.

A recording is a folder `results/<experiment>/<run>/` with `rows.parquet` and `provenance.json`. The
provenance holds the rows' sha256, so a table cannot quote rows that its provenance does not
describe.

Work goes in shards: what is measured is kept, and several processes may share what is left. A shard
is one Parquet file, written whole or not at all, so a killed run goes on by the same command and
loses at most the shards that were open. Under `torchrun` every rank takes the costliest shard that
nobody has, and holds its lock, which the system frees when the process dies. There is no other
exchange between ranks: one that is lost costs its open shard. The first rank puts the shards
together, in their order, so that the rows do not depend on who measured what.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout

from lrputils import __version__
from lrputils.removal.packing import bar
from lrputils.runs.folders import (
    FULL,
    PLAN,
    READY,
    SHARD,
    atomic_write,
    claimed,
    work_folder,
    write_json,
)
from lrputils.study.by_text import Run

ROWS, PROVENANCE = "rows.parquet", "provenance.json"
_PACKED = {"compression": "zstd", "compression_level": 15}
_SCORES = "scores"
_GROUP = 2**26  # bytes of rows that are held at a time
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pandas")
_PATIENCE = 0.2  # seconds between two looks at what the other ranks have done


@dataclass(frozen=True)
class Recording(Run):
    """A recorded run.

    Attributes:
        rows: one row an example and map; which columns, the experiment decides. Text runs have
            those of `lrputils.study.evaluation.Evaluation.rows` but `position`, and `lerf_curve`,
            `morf_curve`, lists of logits.
        provenance: command, parameters, model, data, code, versions, device, time, sha256.
    """

    rows: pd.DataFrame
    provenance: Mapping[str, Any]


def load(experiment: str, run: str, folder: str | Path | None = None) -> Recording:
    """Load the recorded run `results/EXPERIMENT/RUN`, as "sst" and the model it was recorded on.

    The `folder` of results is by default `results/` in the working folder, in one above it, or
    beside the package.

    Raises:
        FileNotFoundError: there is no such recording; the message lists those there are.
        ValueError: the rows are not the ones that the provenance describes.
    """
    place = find(experiment, run, folder).parent
    provenance = facts(place)
    digest, told = _digest(place / ROWS), provenance["rows"]["sha256"]
    if digest != told:
        raise ValueError(
            f"{experiment}/{run}: {ROWS} has sha256 {digest[:12]}…, its provenance says "
            f"{told[:12]}…: record the run again"
        )
    return Recording(pd.read_parquet(place / ROWS), provenance)


def find(
    experiment: str, run: str, folder: str | Path | None = None, file: str = PROVENANCE
) -> Path:
    """Return the path of a recorded run's file; arguments and errors are those of `load`."""
    above = (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents)
    homes = [Path(folder)] if folder is not None else [place / "results" for place in above]
    for home in homes:
        if (path := home / experiment / run / file).is_file():
            return path
    known = sorted({f"{p.parts[-3]}/{p.parts[-2]}" for h in homes for p in h.glob("*/*/*.json")})
    raise FileNotFoundError(
        f"no recorded run {experiment}/{run}; there are {known}. Recorded runs lie in `results/` "
        "of the book's repository, and `python -m recipes.recordings` makes them"
    )


def facts(folder: Path) -> dict[str, Any]:
    """Return the provenance of a recording's folder."""
    return json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))


def write(
    folder: str | Path, rows: pd.DataFrame | Sequence[Path], provenance: Mapping[str, Any]
) -> Path:
    """Write a recording into `folder`; the provenance goes last and names the rows' sha256.

    Of rows in several Parquet files only a few are in memory at a time.
    """
    folder = Path(folder)
    with atomic_write(folder / ROWS) as draft:
        if isinstance(rows, pd.DataFrame):
            rows.to_parquet(draft, index=False, **_packing(pa.Schema.from_pandas(rows)))
        else:
            _join(rows, draft)
        count = pq.read_metadata(draft).num_rows
        whole = {**provenance, "rows": {"count": count, "sha256": _digest(draft)}}
        (folder / PROVENANCE).unlink(missing_ok=True)
    write_json(folder / PROVENANCE, whole)
    return folder


def _join(files: Sequence[Path], draft: Path) -> None:
    """Write the rows of all files into one, in order, in groups of bounded size."""
    schema = pq.read_schema(files[0])
    for path in files:  # a column without a value in one file has a type in another
        schema = pa.unify_schemas([schema, pq.read_schema(path)], promote_options="permissive")
    schema, held = schema.remove_metadata(), []
    with pq.ParquetWriter(draft, schema, **_packing(schema)) as sink:
        for path in files:
            try:
                held.append(pq.read_table(path, page_checksum_verification=True).cast(schema))
            except (OSError, pa.ArrowException) as error:
                raise ValueError(
                    f"{path} is damaged: the same command measures it again"
                ) from error
            if path is files[-1] or sum(table.nbytes for table in held) > _GROUP:
                sink.write_table(pa.concat_tables(held))
                held.clear()


def _packing(schema: pa.Schema) -> dict[str, Any]:
    """How rows are packed: of maps, byte by byte, since their last bits are rounded away."""
    nested = {f.name: f"{f.name}.list.element" for f in schema if pa.types.is_list(f.type)}
    if _SCORES not in nested:
        return _PACKED
    others = [nested.get(name, name) for name in schema.names if name != _SCORES]
    return {**_PACKED, "use_byte_stream_split": [nested[_SCORES]], "use_dictionary": others}


def provenance(
    *,
    command: str,
    parameters: Mapping[str, Any],
    seconds: float,
    device: str | torch.device = "cpu",
    **facts: Any,
) -> dict[str, Any]:
    """Return the provenance of a run that ends now: `command` repeats it, without local paths.

    `parameters` decided the rows, seeds included; `seconds` leave interruptions out; `facts` are
    more, such as `model` and `data`, each with a name and an identity.
    """
    return {
        "command": command,
        "parameters": dict(parameters),
        **facts,
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "device": hardware(device),
        "revision": _revision(),
        "versions": {
            "python": platform.python_version(),
            "lrputils": __version__,
            **{name: version(name) for name in _VERSIONS},
        },
    }


def hardware(device: str | torch.device) -> str:
    """Name the kind of processor without identifying the machine."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def _revision() -> str:
    """Return the commit of the code that runs; "unknown" where it is not a repository."""
    git = partial(
        subprocess.check_output, cwd=Path(__file__).parents[1], text=True, stderr=subprocess.DEVNULL
    )
    try:
        commit = git(["git", "rev-parse", "HEAD"]).strip()
        changed = git(["git", "--no-optional-locks", "status", "--porcelain", "."])
        return commit + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- shards --------------------------------------------------------------------------------------


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


def key(plan: Mapping[str, Any]) -> str:
    """Return a plan's digest; the provenance has it, so that a finished run is known again."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


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
