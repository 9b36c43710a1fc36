"""The precision of float32 matrix products: full, or with rounded factors for speed.

GPUs multiply float32 matrices faster if they may round the factors to TF32 (10 bits of mantissa),
some CPUs if they may round them to bfloat16 (7 bits). Sums and results stay float32. torch keeps
the choice in process-wide settings; here it is a block that always restores them. A setting is a
permission: where the hardware has no such product it changes nothing, and `takes_effect` is false.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

# Which precisions a kind of device may be asked for, the full one first.
PRECISIONS = {"cpu": ("float32", "tf32", "bf16"), "cuda": ("float32", "tf32")}


@contextmanager
def matmul_precision(precision: str, device: str | torch.device = "cpu") -> Iterator[None]:
    """Compute float32 matrix products inside the block at this precision.

    Everything that multiplies matrices is affected: linear layers, attention, their backward pass.
    What was set before comes back when the block ends, also by an exception.

    Args:
        precision: "float32"; "tf32", factors rounded to 10 bits; or "bf16", to 7 bits (CPUs).
        device: a device, or its type: each kind has settings of its own.

    Raises:
        ValueError: this kind of device does not have the precision.
        RuntimeError: torch is older than 2.9 and the precision is not "float32".
    """
    kind = torch.device(device).type
    known = PRECISIONS.get(kind, ("float32",))
    if precision not in known:
        raise ValueError(
            f"precision={precision!r} is not available on {kind!r} devices; choose from {known}"
        )
    settings = _settings(kind)
    if settings is None and precision != "float32":
        raise RuntimeError(
            f"precision={precision!r} on a {kind!r} device needs torch 2.9 or newer; this is "
            f"{torch.__version__}. Use 'float32'"
        )
    settings = settings or SimpleNamespace(fp32_precision=None)
    before = settings.fp32_precision
    settings.fp32_precision = "ieee" if precision == "float32" else precision
    try:
        yield
    finally:
        settings.fp32_precision = before


def takes_effect(precision: str, device: str | torch.device = "cpu") -> bool:
    """Whether products on this device are rounded at this precision.

    False for "float32", and wherever hardware or library ignore the setting: an error of 0 measured
    there says nothing about the precision. Some CPUs only add up in another order, an error of 1e-5
    in the product tried; rounding to 10 bits makes one of 5e-3.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=generator).to(device)
    with matmul_precision("float32", device):
        exact = left @ right
    with matmul_precision(precision, device):
        return float((left @ right - exact).abs().max()) > 1e-3


def _settings(kind: str) -> Any:
    """Where torch keeps the precision of matrix products on this kind of device; None: nowhere."""
    backend = {"cpu": torch.backends.mkldnn, "cuda": torch.backends.cuda}.get(kind)
    settings = getattr(backend, "matmul", None)
    try:
        settings.fp32_precision  # noqa: B018  (an older torch has the object without the setting)
    except (AttributeError, RuntimeError, AssertionError):
        return None
    return settings
