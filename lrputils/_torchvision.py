"""Keep `transformers` importable where torchvision's compiled extension cannot load.

The registry's torchvision wheel is built for CUDA. Beside a CPU-only torch its extension does not
load, torchvision then fails at import (`operator torchvision::nms does not exist`), and with it
every model import of transformers. Declaring the two operators' schemas is enough: nothing in this
project calls them. This happens when torchvision is first imported, so that importing `lrputils`
does not import torch; where the extension loads, nothing happens.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _extension_loads(package_folder: Path) -> bool:
    import torch

    for library in (*package_folder.glob("_C*.so"), *package_folder.glob("_C*.pyd")):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
    return hasattr(torch.ops.torchvision, "nms")


def declare_missing_operators() -> None:
    """Declare `torchvision::nms` and `torchvision::qnms` where torchvision cannot do so itself."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _extension_loads(Path(spec.origin).parent):
        return
    import torch

    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", _SCHEMA)


class _BeforeTorchvision(MetaPathFinder):
    """An import hook that declares the operators before torchvision is first imported."""

    def find_spec(self, fullname: str, path=None, target=None) -> None:
        """Return None: another finder finds the module."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            declare_missing_operators()


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _BeforeTorchvision())
