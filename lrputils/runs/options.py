"""Command lines from signatures, by cyclopts: parameters are options, and docstrings their help."""

from __future__ import annotations

import inspect
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from lrputils.mistakes import about

_FROM_ZERO = ("seed", "target")  # of other whole numbers the smallest is 1


def _listed(_: Any, tokens: Sequence[Any]) -> tuple[str, ...]:
    """Split "a, b"."""
    return tuple(filter(None, map(str.strip, tokens[0].value.split(","))))


def _shown(default: Any) -> str | None:
    """Return how the help writes a default; None, False and what is empty are not worth a word."""
    if default is None or default is False or default in ((), ""):
        return None
    return ",".join(default) if isinstance(default, tuple) else str(default)


LISTED = Parameter(converter=_listed, n_tokens=1, metavar="A,B")
Names = Annotated[tuple[str, ...], LISTED]
FIELDS = Parameter(name="*")  # of a dataclass, whose fields are options
Words = Annotated[str, Parameter(parse=False)]  # the command as it was given


def application(name: str, **options: Any) -> App:
    """Return a command line of this name, to which commands can be added."""
    every = Parameter(negative=(), show_default=_shown)  # no --no-quiet beside --quiet
    options |= {"help_format": "markdown", "result_action": "return_value"}
    return App(name, default_parameter=every, **options)


def call(app: App, words: Sequence[str]) -> Any:
    """Call what the words of a command line ask for; return what it returns.

    A number that no run can have is refused before anything heavy is imported. A parameter
    `command` gets the words, with the last two parts of local paths.

    Raises:
        ValueError: an unknown or missing option, or a value that it cannot have.
    """
    for option, value in pairwise([*words, "."]):
        if option.startswith("--") and (option.endswith("=") or not value):
            raise ValueError(f"{option.rstrip('=')} has no value")
    try:
        command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    except UnusedCliTokensError as error:
        more = shlex.join(error.unused_tokens or ())
        raise ValueError(f"{more}: an argument too many; put several words in quotes") from None
    except CycloptsError as error:
        raise ValueError(str(error)) from None
    given = dict(bound.arguments)
    for value in bound.arguments.values():
        given |= vars(value) if is_dataclass(value) else {}
    check_numbers(given)
    if "command" in inspect.signature(command).parameters:
        bound.arguments["command"] = shlex.join(map(_shortened, (*app.name[0].split(), *words)))
    return command(*bound.args, **bound.kwargs)


def check_numbers(values: Mapping[str, Any]) -> None:
    """Refuse numbers that no run can have."""
    for name, value in values.items():
        least = int(isinstance(value, int) and name not in _FROM_ZERO)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not least <= value < math.inf:
            raise ValueError(about(name, value) + f": the smallest possible value is {least}")


def _shortened(word: str) -> str:
    """Return a word of a command as others may read it: of a path, the last two parts."""
    name, equals, place = word.rpartition("=")
    path = os.path.expanduser(place)
    local = os.path.exists(path) or os.path.isabs(path) or place.startswith(".")
    return f"{name}{equals}{'/'.join(Path(path).parts[-2:])}" if local else word
