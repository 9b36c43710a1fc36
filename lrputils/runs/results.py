"""Recorded runs, read: a row per example and method, and where the rows come from.

A recording is a folder `results/<experiment>/<run>/` with `rows.parquet` and `provenance.json`. The
provenance holds the rows' sha256, so a table cannot quote rows that its provenance does not
describe. `experiments.recordings` writes them.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lrputils import __version__
from lrputils.runs.folders import read_json
from lrputils.study.by_text import Run

ROWS, PROVENANCE = "rows.parquet", "provenance.json"


@dataclass(frozen=True)
class Recording(Run):
    """A recorded run.

    Attributes:
        rows: one row an example and map; which columns, the experiment decides. Text runs have
            those of `lrputils.study.evaluation.Evaluation.rows` but `position`, the maps, their
            tokens and `spearman`.
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
    provenance, rows = read_json(Path(place) / PROVENANCE), Path(place) / ROWS
    if (
        not rows.is_file()
        or hashlib.sha256(rows.read_bytes()).hexdigest() != provenance["rows"]["sha256"]
    ):
        raise ValueError(
            f"{rows} is {'not what' if rows.is_file() else 'gone, which'} {PROVENANCE} beside it "
            f"describes: put the rows back, or remove {PROVENANCE} and record the run again"
        )
    return Recording(pd.read_parquet(rows), provenance)


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
        "of the book's repository, and `python -m experiments.recordings` makes them"
    )


def compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of measured values: a tenth of what another processor moves them by."""
    floats = rows.select_dtypes("float").columns
    rows[floats] = rows[floats].astype("float32").round(4)
    return rows


def hardware(device: str | torch.device) -> str:
    """Name the kind of processor without identifying the machine."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def revision() -> str:
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
