"""Recorded runs: a row per example and method, and where the rows come from.

A recording is a folder `results/<experiment>/<run>/` with `rows.parquet` and `provenance.json`. The
provenance holds the rows' sha256, so a table cannot quote rows that its provenance does not
describe. How rows are measured is in `lrputils.runs`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lrputils.runs.folders import atomic_write, write_json
from lrputils.study.by_text import Run

ROWS, PROVENANCE = "rows.parquet", "provenance.json"
_OLD_NAME = (
    r"^(?:(?P<family>front|back|single) (?P<layer>\d+)|(?P<method>.+?))(?: @ (?P<readout>.+))?$"
)
_VERSIONS = ("lrputils", "torch", "transformers", "tokenizers", "numpy", "pandas")


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

    def caption(self) -> str:
        """Say when, on what and how long: "recorded 2026-11-20, x86_64 CPU …, 73 minutes"."""
        minutes = self.provenance["seconds"] / 60
        took = f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} seconds"
        return f"recorded {self.provenance['date']}, {self.provenance['device']}, {took}"

    def facts(self) -> dict[str, Any]:
        """What prose quotes of a text run: `caption`, `model` (its name), `texts` (how many)."""
        known = self.provenance
        names = {"model": known["model"]["name"], "texts": known["data"]["texts"]}
        return {"caption": self.caption(), **names}


def load(experiment: str, run: str, folder: str | Path | None = None) -> Recording:
    """Load the recorded run `results/<experiment>/<run>`.

    Args:
        experiment: "sst", "imdb", "mnist", …
        run: which model it was recorded on.
        folder: the results' folder; if not given, `results/` in the working folder, in one above
            it, or beside the package.

    Raises:
        FileNotFoundError: there is no such recording; the message lists those there are.
        ValueError: the rows are not the ones that the provenance describes.
    """
    homes = [Path(folder)] if folder is not None else list(_homes())
    for home in homes:
        place = home / experiment / run
        if (place / PROVENANCE).is_file():
            return _read(place)
    known = sorted({f"{p.parts[-3]}/{p.parts[-2]}" for h in homes for p in h.glob("*/*/*.json")})
    raise FileNotFoundError(
        f"no recorded run {experiment}/{run}; there are {known}. Recorded runs lie in `results/` "
        "of the book's repository, and `lrputils record` makes them"
    )


def _homes() -> Iterator[Path]:
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        yield from (folder / "results" for folder in (start, *start.parents))


def _read(place: Path) -> Recording:
    provenance = json.loads((place / PROVENANCE).read_text(encoding="utf-8"))
    digest = _digest(place / ROWS)
    if digest != provenance["rows"]["sha256"]:
        raise ValueError(
            f"{place.parent.name}/{place.name}: {ROWS} has sha256 {digest[:12]}…, its provenance "
            f"says {provenance['rows']['sha256'][:12]}…: record the run again"
        )
    rows = pd.read_parquet(place / ROWS)
    return Recording(_labelled(rows) if "method" in rows else rows, provenance)


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Give rows recorded under names like "front 3 @ sum" the columns that took their place."""
    if "family" in rows:
        return rows
    names = pd.Series(rows.method.unique())
    parts = names.str.extract(_OLD_NAME).set_index(names)
    columns = {
        "method": parts.method.fillna("attnlrp"),
        "readout": parts.readout.fillna("word"),
        "family": parts.family.fillna(""),
        "layer": parts.layer.fillna("0").astype(int),
    }
    return rows.assign(**{name: rows.method.map(values) for name, values in columns.items()})


def write(folder: str | Path, rows: pd.DataFrame, provenance: Mapping[str, Any]) -> Path:
    """Write a recording into `folder`; the provenance goes last and names the rows' sha256."""
    folder = Path(folder)
    with atomic_write(folder / ROWS) as partial:
        rows.to_parquet(partial, index=False, compression="zstd", compression_level=15)
        facts = {**provenance, "rows": {"count": len(rows), "sha256": _digest(partial)}}
        (folder / PROVENANCE).unlink(missing_ok=True)
    write_json(folder / PROVENANCE, facts)
    return folder


def provenance(
    *,
    command: str,
    parameters: Mapping[str, Any],
    seconds: float,
    device: str | torch.device = "cpu",
    **facts: Any,
) -> dict[str, Any]:
    """Return the provenance of a run that ends now.

    Args:
        command: the command line that repeats it, without local paths.
        parameters: what decided the rows, seeds included.
        seconds: how long it took, interruptions left out.
        device: what it ran on.
        facts: more, such as `model` and `data`, each with a name and an identity.
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
    here = Path(__file__).parents[1]
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + (" with changes" if _git(here, "status", "--porcelain", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
