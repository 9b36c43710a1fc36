"""Keep `transformers` importable where torchvision's compiled extension cannot load.

The registry's torchvision wheel is built for CUDA. Beside a CPU-only torch its extension does not
load, torchvision then fails at import (`operator torchvision::nms does not exist`), and with it
every model import of transformers. Declaring the two operators' schemas is enough: nothing in this
project calls them. This happens when torchvision is first imported, so that importing `lrputils`
does not import torch; where the extension loads, nothing happens.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision(MetaPathFinder):
    """An import hook that declares what is missing before torchvision is first imported."""

    def find_spec(self, fullname: str, path=None, target=None) -> None:
        """Return None: another finder finds the module."""
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare_missing_operators()


def _declare_missing_operators() -> None:
    """Declare `torchvision::nms` and `torchvision::qnms` where torchvision cannot do so itself."""
    import torch

    spec = find_spec("torchvision")
    for folder in spec.submodule_search_locations if spec else ():
        with suppress(OSError):  # of a library built for another torch
            for library in Path(folder).glob("_C*"):
                torch.ops.load_library(library)
    if not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", _SCHEMA)


if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _BeforeTorchvision())
