"""How exactly float32 matrix products are computed: in full, or with rounded factors for speed.

GPUs multiply float32 matrices faster if they may round the factors to TF32 (10 bits of mantissa),
some CPUs if they may round them to bfloat16 (7 bits). Sums and results stay float32. torch keeps
the choice in process-wide settings; here it is a block that always restores them. A setting is a
permission, not an order: where the hardware has no such product it changes nothing, and
`takes_effect` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# What torch calls each precision, and which of them a kind of device may be asked for.
_SETTING = {"float32": "ieee", "tf32": "tf32", "bf16": "bf16"}
PRECISIONS = {"cpu": ("float32", "tf32", "bf16"), "cuda": ("float32", "tf32")}


@contextmanager
def matmul_precision(precision: str, device: str | torch.device = "cpu") -> Iterator[None]:
    """Inside the block, compute float32 matrix products on this kind of device so precisely.

    Everything that multiplies matrices is affected: linear layers, attention, their backward pass.
    What was set before comes back when the block ends, also by an exception.

    Args:
        precision: "float32"; "tf32", factors rounded to 10 bits; or "bf16", to 7 bits (CPUs).
        device: a device, or its type: each kind has settings of its own.

    Raises:
        ValueError: a precision that this kind of device does not have, at entry.
        RuntimeError: this torch cannot be asked for one (before 2.9), unless it is "float32".
    """
    kind = torch.device(device).type
    known = PRECISIONS.get(kind, ("float32",))
    if precision not in known:
        raise ValueError(f"precision={precision!r} is none of {kind!r} devices: {known}")
    settings = _settings(kind)
    if settings is None:
        if precision != "float32":
            raise RuntimeError(
                f"precision={precision!r} on a {kind!r} device needs torch 2.9 or newer; this is "
                f"{torch.__version__}. Use 'float32'"
            )
        yield
        return
    before = settings.fp32_precision
    settings.fp32_precision = _SETTING[precision]
    try:
        yield
    finally:
        settings.fp32_precision = before


def takes_effect(precision: str, device: str | torch.device = "cpu") -> bool:
    """Whether a product of random matrices comes out differently from float32's on this device.

    False for "float32" itself, and wherever hardware or library ignore the setting: an error of 0
    measured there says nothing about the precision.

    Raises:
        ValueError: a precision that this kind of device does not have.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=generator).to(device)
    with matmul_precision("float32", device):
        exact = left @ right
    with matmul_precision(precision, device):
        return not torch.equal(left @ right, exact)


def _settings(kind: str) -> Any:
    """Where torch keeps the precision of matrix products on this kind of device; None: nowhere."""
    backend = {"cpu": torch.backends.mkldnn, "cuda": torch.backends.cuda}.get(kind)
    settings = getattr(backend, "matmul", None)
    try:
        settings.fp32_precision  # noqa: B018  (an older torch has the object without the setting)
    except (AttributeError, RuntimeError, AssertionError):
        return None
    return settings
