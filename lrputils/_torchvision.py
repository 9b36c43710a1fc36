"""Keep `transformers` importable where torchvision's compiled extension cannot load.

The registry's torchvision wheel is built for CUDA. Beside a CPU-only torch its extension does not
load, torchvision then fails at import (`operator torchvision::nms does not exist`), and with it
every model import of transformers. Declaring the two operators' schemas is enough: nothing in this
project calls them. This module does nothing where the extension loads.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _extension_loads(package_folder: Path) -> bool:
    for library in (*package_folder.glob("_C*.so"), *package_folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
    return hasattr(torch.ops.torchvision, "nms")


def declare_missing_operators() -> None:
    """Declare `torchvision::nms` and `torchvision::qnms` where torchvision cannot do so itself."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _extension_loads(Path(spec.origin).parent):
        return
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", _SCHEMA)


declare_missing_operators()
