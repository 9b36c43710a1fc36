"""Give single modules another forward pass, in this thread only, and take it out again.

A forward pass put on one instance leaves its class and every other model alone. The instance holds
one dispatcher while any thread needs it; a thread that installed nothing gets the original. So two
threads can use one model with different rules, and the last one out restores the instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]

_lock = threading.Lock()


class _Dispatcher(threading.local):
    """Stands as `module.forward`: this thread's replacement if there is one, else the original."""

    def __init__(self, original: Forward, previous: Forward | None):
        # `threading.local` runs this again in each thread that looks, with an empty `replacement`.
        self.original = original
        self.previous = previous
        self.replacement: Forward | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        replacement = self.replacement
        if replacement is None:
            return self.original(*args, **kwargs)
        return replacement(self.original, *args, **kwargs)


_users: dict[int, int] = {}


def _install(module: nn.Module, replacement: Forward) -> None:
    with _lock:
        dispatcher = module.__dict__.get("forward")
        if not isinstance(dispatcher, _Dispatcher):
            dispatcher = _Dispatcher(module.forward, module.__dict__.get("forward"))
            module.forward = dispatcher
        if dispatcher.replacement is not None:
            raise RuntimeError(
                f"this {type(module).__name__} already has another forward pass in this thread: "
                "leave the first `with` block before entering a second one on the same model"
            )
        dispatcher.replacement = replacement
        _users[id(dispatcher)] = _users.get(id(dispatcher), 0) + 1


def _remove(module: nn.Module) -> None:
    with _lock:
        dispatcher = module.__dict__["forward"]
        dispatcher.replacement = None
        _users[id(dispatcher)] -= 1
        if _users[id(dispatcher)]:
            return
        del _users[id(dispatcher)]
        if dispatcher.previous is None:
            del module.forward
        else:
            module.forward = dispatcher.previous


@contextmanager
def replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Inside the block, `forwards[module](original, *args, **kwargs)` runs for `module(*args, …)`.

    `original` is the forward pass that the instance had before. Only this thread sees the
    replacements; they are removed on the way out, also after an exception.

    Raises:
        RuntimeError: one of the modules already has a replacement in this thread.
    """
    installed: list[nn.Module] = []
    try:
        for module, forward in forwards.items():
            _install(module, forward)
            installed.append(module)
        yield
    finally:
        for module in reversed(installed):
            _remove(module)
