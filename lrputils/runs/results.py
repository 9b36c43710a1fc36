"""Recorded runs: a row per example and method, and where the rows come from.

A recording is a folder `results/<experiment>/<run>/` with `rows.parquet` and `provenance.json`. The
provenance holds the rows' sha256, so a table cannot quote rows that its provenance does not
describe.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from lrputils import __version__
from lrputils.runs.folders import atomic_write, read_json, write_json
from lrputils.study.by_text import Run

ROWS, PROVENANCE = "rows.parquet", "provenance.json"
_NEW = "{}.new"  # of a pair that is written and not yet in its place
_PACKED = {"compression": "zstd", "compression_level": 15}
_SCORES = "scores"
_GROUP = 2**26  # bytes of rows that are held at a time
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pandas")


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
    return read(find(experiment, run, folder).parent)


def read(place: str | Path) -> Recording:
    """Read the recorded run in a folder, wherever it lies; arguments and errors as in `load`."""
    provenance = facts(Path(place), checked=True)
    return Recording(pd.read_parquet(Path(place) / ROWS), provenance)


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


def facts(folder: Path, *, checked: bool = False) -> dict[str, Any]:
    """Return the provenance of a recording's folder.

    Raises:
        FileNotFoundError: it has none.
        ValueError: it is damaged, or, if `checked`, the rows are not those that it describes.
    """
    provenance, rows = read_json(folder / PROVENANCE), folder / ROWS
    if checked and (not rows.is_file() or _digest(rows) != provenance["rows"]["sha256"]):
        raise ValueError(
            f"{rows} is {'not what' if rows.is_file() else 'gone, which'} {PROVENANCE} beside it "
            f"describes: put the rows back, or remove {PROVENANCE} and record the run again"
        )
    return provenance


def write(
    folder: str | Path, rows: pd.DataFrame | Sequence[Path], provenance: Mapping[str, Any]
) -> Path:
    """Write a recording into `folder`: rows, and the provenance, which names their sha256.

    Both replace those that are there in one step: a process that is killed leaves the old pair, or
    a new one that `settle` puts in its place. Of rows in several Parquet files only a few are in
    memory at a time.
    """
    folder = Path(folder)
    settle(folder)
    with atomic_write(folder / _NEW.format(ROWS)) as draft:
        if isinstance(rows, pd.DataFrame):
            rows.to_parquet(draft, index=False, **_packing(pa.Schema.from_pandas(rows)))
        else:
            _join(rows, draft)
        count = pq.read_metadata(draft).num_rows
        whole = {**provenance, "rows": {"count": count, "sha256": _digest(draft)}}
    write_json(folder / _NEW.format(PROVENANCE), whole)
    settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Put rows and provenance that were written whole in their places; the provenance goes last."""
    new = {name: folder / _NEW.format(name) for name in (ROWS, PROVENANCE)}
    if new[PROVENANCE].is_file():
        for name, path in new.items():
            with suppress(FileNotFoundError):  # a process was killed after this one
                os.replace(path, folder / name)
    new[ROWS].unlink(missing_ok=True)


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
        "device": _hardware(device),
        "revision": _revision(),
        "versions": {
            "python": platform.python_version(),
            "lrputils": __version__,
            **{name: version(name) for name in _VERSIONS},
        },
    }


def _hardware(device: str | torch.device) -> str:
    """Name the kind of processor without identifying the machine."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def _revision() -> str:
    """Return the commit of the code that runs; its version where no repository has its files."""
    git = partial(
        subprocess.check_output, cwd=Path(__file__).parents[1], text=True, stderr=subprocess.DEVNULL
    )
    try:
        git(["git", "ls-files", "--error-unmatch", __file__])  # or it lies in another's folder
        commit = git(["git", "rev-parse", "HEAD"]).strip()
        changed = git(["git", "--no-optional-locks", "status", "--porcelain", "."])
        return commit + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return f"lrputils {__version__}"


def key(plan: Mapping[str, Any]) -> str:
    """Return a plan's digest; the provenance has it, so that a finished run is known again."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
