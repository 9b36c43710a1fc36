"""The command line of a module here: `python -m experiments.…`, from a function's signature."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from lrputils.progress import spell_out
from lrputils.runs.options import application, call


def run_alone(function: Any, arguments: Sequence[str], *, prog: str) -> Any:
    """Call a function by a command line of its own, `prog …`; return what it returns."""
    app = application(prog, version_flags=())
    app.default(function)
    return call(app, arguments)


def main(function: Any, prog: str) -> None:
    """Be the command line of a module: print what its function returns, or what is wrong."""
    spell_out()
    try:
        answer = run_alone(function, sys.argv[1:], prog=prog)
    except (OSError, ValueError) as error:
        sys.exit(f"{prog}: {error}")
    if answer is not None:
        print(answer)
