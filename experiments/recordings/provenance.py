"""What a recording says of its origin, and how it is written: `lrputils.runs.results` reads it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lrputils import __version__
from lrputils.runs.folders import atomic_write, disk_told, write_json
from lrputils.runs.results import PROVENANCE, ROWS, hardware, revision

_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pandas")


def write(folder: str | Path, rows: pd.DataFrame, provenance: Mapping[str, Any]) -> Path:
    """Write a recording into `folder`: rows, then the provenance, which names their sha256."""
    folder = Path(folder)
    with disk_told(folder), atomic_write(folder / ROWS) as draft:
        # Maps split by bytes are squeezed to half of what a dictionary leaves.
        split = {"scores.list.element": "BYTE_STREAM_SPLIT"} if "scores" in rows else {}
        rows.to_parquet(
            draft,
            index=False,
            compression="zstd",
            compression_level=15,
            use_dictionary=[name for name in rows if name != "scores"],
            column_encoding=split,
        )
        told = {"count": len(rows), "sha256": hashlib.sha256(draft.read_bytes()).hexdigest()}
    with disk_told(folder):
        write_json(folder / PROVENANCE, {**provenance, "rows": told})
    return folder


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
        "revision": revision(),
        "versions": {
            "python": platform.python_version(),
            "lrputils": __version__,
            **{name: version(name) for name in _VERSIONS},
        },
    }
