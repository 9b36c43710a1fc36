"""How long work says how far it is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import io
import sys
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


def say(text: str, quiet: bool = False) -> None:
    """Say on a terminal, at once, what takes seconds from here on; elsewhere nothing."""
    if sys.stderr.isatty() and not quiet:
        print(text, file=sys.stderr, flush=True)


def spell_out() -> None:
    """Let no letter that a terminal lacks end the work: it is written as its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
