"""What may stand where a model is taken: the one place that unwraps it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from torch import nn


class HoldsModel(Protocol):
    """What keeps a model as `.model`: `Classifier`, `Architecture`, a transformers pipeline."""

    model: nn.Module


Handle = nn.Module | HoldsModel

# Wrappers around the same parameters and the same function → where they keep the module.
_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
}


def model_of(handle: Handle) -> nn.Module:
    """The plain model behind a handle.

    What keeps its model as `.model`, a `Classifier` or a pipeline, is unwrapped, and so are
    compiled and data-parallel models, whose module inside has the same parameters and computes the
    same function.

    Raises:
        TypeError: a model's name, or a model with an adapter (PEFT); the message says what to pass.
    """
    kind = type(handle)
    if isinstance(handle, str | Path):
        name = str(handle)
        raise TypeError(f"{name!r} is the name of a model: pass load_classifier({name!r})")
    if kind.__module__.split(".")[0] == "peft":
        raise TypeError(
            f"{kind.__name__} keeps an adapter beside the model's weights: merge it first, "
            "model = model.merge_and_unload(), and pass that"
        )
    place = _WRAPPERS.get(kind.__name__, None if isinstance(handle, nn.Module) else "model")
    inside = getattr(handle, place, None) if place else None
    return handle if inside is None else model_of(inside)
