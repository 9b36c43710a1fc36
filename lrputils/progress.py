"""How long work says how far it is: a bar on a terminal, lines in a log, whoever reads them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from tqdm import tqdm


class _Log:
    """Where tqdm writes if there is no terminal: each state is a line of its own."""

    def write(self, text: str) -> None:
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        pass


def bar(progress: bool, *, log: bool = False, **options: Any) -> tqdm:
    """Return a progress bar for a terminal; `options` are tqdm's.

    Elsewhere nothing is drawn, or, with `log`, a plain line every half minute.
    """
    terminal = sys.stderr.isatty()
    if not progress or not (terminal or log):
        # `disable=None` would do the same, but overrule the user's TQDM_DISABLE.
        options["disable"] = True
    elif not terminal:
        line = "{desc}: {n_fmt} of {total_fmt}{unit}, {elapsed} so far, {remaining} left"
        options = {"file": _Log(), "mininterval": 30, "bar_format": line, **options}
    return tqdm(**options)


class _Unread:
    """A stream whose reader may leave, as `head -1` does: the rest goes nowhere."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _go_on(self, act: Callable[..., object], *given: str) -> None:
        try:
            act(*given)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def write(self, text: str) -> None:
        self._go_on(self._stream.write, text)

    def flush(self) -> None:
        self._go_on(self._stream.flush)


@contextmanager
def going_on_unread() -> Iterator[None]:
    """Let no output or message end the work: a letter that a terminal lacks, or a closed pipe."""
    with ExitStack() as undo:
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
            stream = stream or undo.enter_context(open(os.devnull, "w"))
            undo.enter_context(redirect(_Unread(stream)))
        yield
