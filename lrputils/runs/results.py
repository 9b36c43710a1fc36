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
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
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
        model, data = self.provenance["model"], self.provenance["data"]
        return {"caption": self.caption(), "model": model["name"], "texts": data["texts"]}


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
    above = (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents)
    homes = [Path(folder)] if folder is not None else [place / "results" for place in above]
    for home in homes:
        if (home / experiment / run / PROVENANCE).is_file():
            return _read(home / experiment / run)
    known = sorted({f"{p.parts[-3]}/{p.parts[-2]}" for h in homes for p in h.glob("*/*/*.json")})
    raise FileNotFoundError(
        f"no recorded run {experiment}/{run}; there are {known}. Recorded runs lie in `results/` "
        "of the book's repository, and `lrputils record` makes them"
    )


def _read(place: Path) -> Recording:
    provenance = json.loads((place / PROVENANCE).read_text(encoding="utf-8"))
    digest, told = _digest(place / ROWS), provenance["rows"]["sha256"]
    if digest != told:
        raise ValueError(
            f"{place.parent.name}/{place.name}: {ROWS} has sha256 {digest[:12]}…, its provenance "
            f"says {told[:12]}…: record the run again"
        )
    return Recording(_labelled(pd.read_parquet(place / ROWS)), provenance)


def _labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Give rows recorded under names like "front 3 @ sum" the columns that took their place."""
    if "readout" in rows or "method" not in rows:
        return rows
    names = pd.Series(rows.method.unique())
    parts = names.str.extract(_OLD_NAME).set_index(names)
    parts = parts.fillna({"method": "attnlrp", "readout": "word", "family": "", "layer": "0"})
    parts = parts.astype({"layer": int})
    return rows.assign(**{name: rows.method.map(parts[name]) for name in parts})


def write(folder: str | Path, rows: pd.DataFrame, provenance: Mapping[str, Any]) -> Path:
    """Write a recording into `folder`; the provenance goes last and names the rows' sha256."""
    folder = Path(folder)
    with atomic_write(folder / ROWS) as draft:
        rows.to_parquet(draft, index=False, compression="zstd", compression_level=15)
        facts = {**provenance, "rows": {"count": len(rows), "sha256": _digest(draft)}}
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
    git = partial(
        subprocess.check_output, cwd=Path(__file__).parents[1], text=True, stderr=subprocess.DEVNULL
    )
    try:
        commit = git(["git", "rev-parse", "HEAD"]).strip()
        return commit + (" with changes" if git(["git", "status", "--porcelain", "."]) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
