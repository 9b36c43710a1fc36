"""`pytest --nbval` compares text and integers exactly, floats nearly, and misses no figure."""

from __future__ import annotations

import atexit
from typing import Any
from unittest.mock import patch

from nbval.kernel import RunningKernel

from lrputils.book.regression import pytest_configure  # noqa: F401  (pytest looks for it here)

# What a chapter may set beyond its own names.
_AFRESH = "%reset -f\nimport torch\ntorch.set_default_dtype(torch.float32)\ndel torch"


class SharedKernel(RunningKernel):
    """One kernel for all chapters that a process checks: its imports are paid for once.

    A chapter begins without the names of the one before it. `lrputils execute` gives each chapter a
    kernel of its own, and what that wrote is what is compared here.
    """

    shared: SharedKernel | None = None

    def __new__(cls, *_: Any, **__: Any) -> SharedKernel:
        """Return the kernel that runs, or else a new one."""
        alive = cls.shared is not None and cls.shared.is_alive()
        return cls.shared if alive else super().__new__(cls)

    def __init__(self, *place: Any, **options: Any) -> None:
        if self is SharedKernel.shared:
            message = self.execute_cell_input(_AFRESH)
            self.await_reply(message)
            self.await_idle(message, 60)
            return
        super().__init__(*place, **options)
        SharedKernel.shared = self
        atexit.register(super().stop)

    def stop(self) -> None:
        """Leave the kernel to the next chapter."""


patch("nbval.plugin.RunningKernel", SharedKernel).start()
