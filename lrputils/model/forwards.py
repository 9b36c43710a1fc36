"""Give single modules another forward pass, in this thread only, and take it out again.

The replacement belongs to one instance, not to its class. The instance holds one dispatcher while
any thread needs it; a thread that installed nothing gets the original. So two threads can use one
model with different rules, and the last one to finish restores the instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn

Forward = Callable[..., Any]

_lock = threading.Lock()


class _Dispatcher:
    """The `forward` of a module: this thread's replacements around the original."""

    def __init__(self, module: nn.Module):
        self.previous = module.__dict__.get("forward")
        self.original: Forward = module.forward
        self.users = 0
        self._local = threading.local()

    @property
    def replacements(self) -> list[Forward]:
        """This thread's replacements, the outermost last."""
        return self._local.__dict__.setdefault("replacements", [])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.original
        for replacement in self.replacements:
            forward = partial(replacement, forward)
        return forward(*args, **kwargs)


@contextmanager
def _installed(module: nn.Module, replacement: Forward) -> Iterator[None]:
    with _lock:
        dispatcher = module.__dict__.get("forward")
        if not isinstance(dispatcher, _Dispatcher):
            dispatcher = module.forward = _Dispatcher(module)
        dispatcher.users += 1
        dispatcher.replacements.append(replacement)
    try:
        yield
    finally:
        with _lock:
            dispatcher.replacements.pop()
            dispatcher.users -= 1
            if not dispatcher.users:
                del module.forward
                if dispatcher.previous is not None:
                    module.forward = dispatcher.previous


@contextmanager
def replaced(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Inside the block, `module(*args, **kwargs)` runs `forwards[module](inner, *args, **kwargs)`.

    `inner` is the forward pass that the instance had before: its own, or the replacement of an
    enclosing block. Only this thread sees the replacements; they are removed when the block ends,
    also by an exception.
    """
    with ExitStack() as undo:
        for module, forward in forwards.items():
            undo.enter_context(_installed(module, forward))
        yield
