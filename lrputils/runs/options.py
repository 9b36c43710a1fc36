"""Command lines from signatures: parameters are options, and docstrings their help.

What stands in a function's docstring before `Args:` describes the verb; `Example:` ends its help.
Each parameter that `Args:` names is an option, `name, other_name (SHOWN): help`; those before `/`
are arguments, a sequence of any number. A parameter whose type is a dataclass stands for its
fields, which the docstrings of that class and those below it list under `Attributes:`.
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from lrputils.mistakes import about, flag

_SECTION = re.compile(r"^(Args|Attributes|Example|Returns|Raises):\n", re.M)
_ENTRY = re.compile(r"^(\w+)((?:, \w+)*)(?: \((.+?)\))?: (.+(?:\n .+)*)", re.M)
_FROM_ZERO = ("seed", "target")  # of other whole numbers the smallest is 1
# How a value is shown, by its type.
_SHOWN = {int: "N", float: "X", Path: "DIR", tuple: "A,B"}


class _Paragraphs(argparse.HelpFormatter):
    """Fills paragraphs, and leaves what is indented as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(p if p[:1] == " " else textwrap.fill(p, width) for p in parts)


def add_verb(verbs: argparse._SubParsersAction, function: Callable[..., Any]) -> None:
    """Add a verb with the name of a function, which `call` calls."""
    told = _told(function)
    head, _, rest = told["description"].partition("\n")
    told["description"] = rest.strip() or head
    verb = verbs.add_parser(function.__name__, help=head.rstrip("."), **told)
    verb.set_defaults(run=function)
    _add_options(verb, function)


def run_alone(
    function: Callable[..., Any], arguments: Sequence[str] | None = None, *, prog: str
) -> Any:
    """Call a function by a command line of its own, `prog …`; return what it returns."""
    parser = argparse.ArgumentParser(prog=prog, **_told(function))
    parser.set_defaults(run=function)
    _add_options(parser, function)
    return call(parser.parse_args(arguments), [*prog.split(), *(arguments or sys.argv[1:])])


def _sections(documented: Callable[..., Any]) -> dict[str, str]:
    """Return the sections of a docstring by their titles; that before them has none."""
    head, *parts = _SECTION.split(inspect.getdoc(documented) or "")
    return {"": head.strip(), **dict(zip(parts[::2], parts[1::2], strict=True))}


def _told(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a parser is told of a function."""
    told = _sections(function)
    return {
        "description": told[""].replace("%", "%%"),
        "epilog": f"example:\n\n{told['Example'].rstrip()}" if "Example" in told else None,
        "formatter_class": _Paragraphs,
    }


def _add_options(
    parser: argparse.ArgumentParser, documented: Callable[..., Any], defaults: Any = None
) -> None:
    """Add the documented parameters of a function; of a dataclass among them, its fields."""
    entries: dict[str, re.Match[str]] = {}
    for one in reversed(getattr(documented, "__mro__", [documented])):
        told = _sections(one)
        text = textwrap.dedent(told.get("Args") or told.get("Attributes", ""))
        entries |= {entry[1]: entry for entry in _ENTRY.finditer(text)}
    for name, parameter in inspect.signature(documented, eval_str=True).parameters.items():
        default = getattr(defaults, name, parameter.default)
        if is_dataclass(kind := parameter.annotation) and isinstance(kind, type):
            _add_options(parser, kind, default)
        elif name in entries:
            _, more, *help_text = entries[name].groups()
            names, how = [name], _how(parameter.replace(default=default), *help_text)
            if parameter.kind is not Parameter.POSITIONAL_ONLY:
                names = [flag(one) for one in (name, *more.split(", ")[1:])]
                how |= {"dest": name, "required": default is Parameter.empty}
            parser.add_argument(*names, **how)


def _how(parameter: Parameter, shown: str | None, text: str) -> dict[str, Any]:
    """Return what `add_argument` is told of a parameter."""
    default = None if parameter.default is Parameter.empty else parameter.default
    kind, text = parameter.annotation, " ".join(text.split()).replace("%", "%%")
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if kind is bool:
        return {"action": "store_true", "help": text}
    if default not in (None, (), "") and "(default" not in text:
        text += f" (default: {','.join(default) if isinstance(default, tuple) else default})"
    several = get_origin(kind)
    how = {
        "help": text,
        "default": default,
        "metavar": shown or _SHOWN.get(several or kind, "NAME"),
    }
    if several is Literal:
        return how | {"choices": get_args(kind)}
    if several is tuple:
        return how | {"type": _listed}
    if several is Sequence:  # an option is repeated
        words = parameter.kind is Parameter.POSITIONAL_ONLY
        return how | ({"nargs": "*"} if words else {"action": "append"})
    return how | {"type": kind}


def call(options: argparse.Namespace, words: Iterable[str]) -> Any:
    """Call the verb's function with the parsed options, which came as these words.

    What needs no model to be known wrong is refused before anything heavy is imported. A parameter
    `command` gets the words, with the last two parts of local paths alone.
    """
    given = vars(options)
    check_numbers(given)
    _check_places(given)
    ordered: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(options.run, eval_str=True).parameters.items():
        if is_dataclass(kind := parameter.annotation) and isinstance(kind, type):
            named[name] = kind(**{field.name: given[field.name] for field in fields(kind)})
        elif parameter.kind is Parameter.POSITIONAL_ONLY:
            ordered.append(given[name])
        elif name == "command":
            named[name] = shlex.join(map(_shortened, words))
        else:
            named[name] = given[name]
    return options.run(*ordered, **named)


def _check_places(given: Mapping[str, Any]) -> None:
    """Refuse files and folders that are not there."""
    from lrputils.data.files import find, is_path

    for name in ("model", "dataset"):
        place = given.get(name)
        if place and is_path(place):
            find(place, repository=name, parameter=name)


def check_numbers(values: Mapping[str, Any]) -> None:
    """Refuse numbers that no run can have."""
    for name, value in values.items():
        least = int(isinstance(value, int) and name not in _FROM_ZERO)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not least <= value < math.inf:
            raise ValueError(about(name, value) + f": the smallest possible value is {least}")


def _listed(names: str) -> tuple[str, ...]:
    """Split "a, b"."""
    return tuple(filter(None, map(str.strip, names.split(","))))


def _shortened(word: str) -> str:
    """Return a word of a command as others may read it: of a path, the last two parts."""
    name, equals, place = word.rpartition("=")
    path = os.path.expanduser(place)
    local = os.path.exists(path) or os.path.isabs(path) or place.startswith(".")
    return f"{name}{equals}{'/'.join(Path(path).parts[-2:])}" if local else word
