"""One thread for the small matrices of these networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread; afterwards it has as many as before.

    Thousands of products of 196 × 32 matrices gain little from a second thread, and wait for it
    where the core is busy: minutes instead of seconds.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
