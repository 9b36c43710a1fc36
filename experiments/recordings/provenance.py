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
import pyarrow as pa
import torch

from lrputils import __version__
from lrputils.runs.folders import atomic_write, disk_told, write_json
from lrputils.runs.results import PROVENANCE, ROWS, hardware, revision

_PACKED = {"compression": "zstd", "compression_level": 15}
_SCORES = "scores"
_VERSIONS = ("torch", "transformers", "tokenizers", "numpy", "pandas")


def write(folder: str | Path, rows: pd.DataFrame, provenance: Mapping[str, Any]) -> Path:
    """Write a recording into `folder`: rows, then the provenance, which names their sha256."""
    folder = Path(folder)
    with disk_told(folder), atomic_write(folder / ROWS) as draft:
        rows.to_parquet(draft, index=False, **_packing(pa.Schema.from_pandas(rows)))
        told = {"count": len(rows), "sha256": hashlib.sha256(draft.read_bytes()).hexdigest()}
    with disk_told(folder):
        write_json(folder / PROVENANCE, {**provenance, "rows": told})
    return folder


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
        "revision": revision(),
        "versions": {
            "python": platform.python_version(),
            "lrputils": __version__,
            **{name: version(name) for name in _VERSIONS},
        },
    }
