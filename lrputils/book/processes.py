"""Processes that end with the one that started them, however it ends."""

from __future__ import annotations

import os
import threading
import time


def end_with_parent() -> None:
    """End this process once the one that started it has ended, killed or not."""
    threading.Thread(target=_watch, args=[os.getppid()], daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
