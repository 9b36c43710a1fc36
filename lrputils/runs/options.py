"""Command lines from signatures: parameters are options, and docstrings their help.

What stands in a function's docstring before `Args:` describes the verb; `Example:` ends its help.
Each parameter that `Args:` names is an option, `name, other_name (SHOWN): help`; those before `/`
are arguments. A parameter whose type is a dataclass stands for its fields, which the docstring of
that class lists under `Attributes:`.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

_SECTION = re.compile(r"^(Args|Attributes|Example|Returns|Raises):\n((?: {4}.*\n?|\n)*)", re.M)
_ENTRY = re.compile(r"^(\w+)((?:, \w+)*)(?: \((.+?)\))?: (.+(?:\n .+)*)", re.M)
# Where and how it runs does not change the rows.
_LEFT_OUT = ("verb", "run", "quiet", "device", "out", "dry_run", "price")
_FROM_ZERO = ("seed", "ablation_curves", "target")  # of other whole numbers the smallest is 1
# What functions call the parameter that an option sets.
_ALSO = {
    "model": ("name_or_folder",),
    "base": ("name_or_folder",),
    "columns": ("text_column", "label_column"),
}
_PLACES = ("model", "dataset", "base", "data", "validation")


class _Paragraphs(argparse.HelpFormatter):
    """Fills paragraphs, and leaves what is indented as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.split("\n\n")
        return "\n\n".join(p if p[:1] == " " else textwrap.fill(p, width) for p in parts)


def add_verb(verbs: argparse._SubParsersAction, function: Callable[..., Any]) -> None:
    """Add a verb with the name of a function, which `call` calls."""
    told = _told(function)
    head = told["description"].partition("\n")[0]
    told["description"] = told["description"].removeprefix(head).strip() or head
    verb = verbs.add_parser(function.__name__, help=head.rstrip("."), **told)
    verb.set_defaults(run=function)
    add_options(verb, function)


def run_alone(
    function: Callable[..., Any], arguments: Sequence[str] | None = None, *, prog: str
) -> Any:
    """Call a function by a command line of its own, `prog …`; return what it returns."""
    parser = argparse.ArgumentParser(prog=prog, **_told(function))
    add_options(parser, function)
    return call(parser.parse_args(arguments, argparse.Namespace(run=function, verb=prog)))


def _told(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a parser is told of a function."""
    doc = inspect.getdoc(function)
    examples = "\n\n".join(("example:", *_sections(doc, "Example"))).rstrip()
    return {
        "description": _SECTION.split(doc)[0].strip().replace("%", "%%"),
        "epilog": None if examples == "example:" else examples,
        "formatter_class": _Paragraphs,
    }


def add_options(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """Add the documented parameters of a function or a dataclass to a parser."""
    for source, parameter in _parameters(function):
        entries = {
            entry[1]: (entry[2].split(", ")[1:], entry[3], " ".join(entry[4].split()))
            for text in _sections(inspect.getdoc(source), "Args", "Attributes")
            for entry in _ENTRY.finditer(textwrap.dedent(text))
        }
        if parameter.name in entries:
            more, shown, text = entries[parameter.name]
            names, how = [parameter.name], _how(parameter, shown, text)
            if parameter.kind not in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL):
                names = [flag(name) for name in (*names, *more)]
                how |= {"dest": parameter.name, "required": parameter.default is Parameter.empty}
            parser.add_argument(*names, **how)


def _sections(doc: str, *names: str) -> Iterator[str]:
    return (found[2] for found in _SECTION.finditer(f"{doc}\n") if found[1] in names)


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[Callable[..., Any], Parameter]]:
    """Yield what documents a parameter, and the parameter; of a dataclass its fields'."""
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if not is_dataclass(kind := parameter.annotation):
            yield function, parameter
            continue
        for source, field in _parameters(kind):
            changed = getattr(parameter.default, field.name, field.default)
            yield source, field.replace(default=changed, kind=Parameter.KEYWORD_ONLY)


def _how(parameter: Parameter, shown: str | None, text: str) -> dict[str, Any]:
    """Return what `add_argument` is told of a parameter."""
    default = None if parameter.default is Parameter.empty else parameter.default
    kind = parameter.annotation
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if kind is bool:
        return {"action": "store_true", "help": text}
    if default not in (None, (), "") and "(default" not in text:
        stated = ",".join(default) if isinstance(default, tuple) else default
        text = f"{text} (default: {stated})"
    how = {"help": text.replace("%", "%%"), "default": default}
    if get_origin(kind) is Literal:
        return how | {"choices": get_args(kind), "metavar": shown}
    if get_origin(kind) is tuple:
        return how | {"type": listed, "metavar": shown or "A,B"}
    if get_origin(kind) is Sequence:
        several = {"action": "append"} if len(parameter.name) == 1 else {"nargs": "+"}
        return how | several | {"metavar": shown or "NAME"}
    usual = {int: "N", float: "X", Path: "DIR"}
    how |= {"type": kind, "metavar": shown or usual.get(kind, "NAME")}
    return how | ({"nargs": "*"} if parameter.kind is Parameter.VAR_POSITIONAL else {})


def call(options: argparse.Namespace) -> Any:
    """Call the verb's function with the parsed options.

    What needs no model to be known wrong is refused before anything heavy is imported.
    """
    check_numbers(vars(options), "{flag} {value}")
    _check_places(vars(options))
    given, ordered, named = vars(options), [], {}
    for name, parameter in inspect.signature(options.run, eval_str=True).parameters.items():
        if is_dataclass(kind := parameter.annotation):
            named[name] = kind(**{field.name: given[field.name] for field in fields(kind)})
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            ordered += given[name]
        elif parameter.kind is Parameter.POSITIONAL_ONLY:
            ordered.append(given[name])
        else:
            named[name] = command(options) if name == "command" else given[name]
    return options.run(*ordered, **named)


def _check_places(given: Mapping[str, Any]) -> None:
    """Refuse files and folders that are not there."""
    from lrputils.data.files import is_path, readable

    for name in _PLACES:
        value = given.get(name)
        local = value and (is_path(value) or (readable(value) and name != "model"))
        if local and not Path(value).expanduser().exists():
            looked = f"there is no such file or folder (looked in {Path.cwd()})"
            raise FileNotFoundError(f"{flag(name)} {value!r}: {looked}")


def with_flags(message: str, names: Iterable[str]) -> str:
    """Write a message about parameters as one about options: `batch_size=0` as `--batch-size 0`."""
    spelled = [(name, also) for name in names for also in (name, *_ALSO.get(name, ()))]
    for name, spelling in spelled:
        message = re.sub(rf"(?<![\w`-]){spelling}=", f"{flag(name)} ", message)
        if "_" in spelling:
            message = re.sub(rf"`?\b{spelling}\b`?", flag(name), message)
    return message


def check_numbers(values: Mapping[str, Any], written: str = "{name}={value}") -> None:
    """Refuse whole numbers that no run can have; `written` is how a name and value are shown."""
    for name, value in values.items():
        least = int(name not in _FROM_ZERO)
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            place = written.format(name=name, flag=flag(name), value=value)
            raise ValueError(f"{place}: the smallest possible value is {least}")


@dataclass(frozen=True)
class Chosen:
    """A classifier and texts.

    Attributes:
        model: folder or hub name (default: embedded)
        revision (REV): branch, tag or commit of the model
        dataset: file, folder, hub name (default: reviews)
        split: of the data set
        text_column: of texts; A,B: of pairs (default: usual)
        label_column: of labels (default: usual names)
        limit: at most this many texts
        seed: draw the texts by this seed
        max_length: cut texts to N tokens
        batch_size: texts a batch
        device (DEVICE): auto (a GPU if there is one), cpu, cuda:1
    """

    model: str | None = None
    revision: str | None = None
    dataset: str | None = None
    split: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    limit: int | None = None
    seed: int | None = None
    max_length: int | None = None
    batch_size: int = 16
    device: str = "auto"

    @property
    def of_texts(self) -> dict[str, Any]:
        """How the texts are chosen from the data set."""
        names = ("split", "text_column", "label_column", "limit", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def sizes(self) -> dict[str, Any]:
        """What bounds a batch and a text."""
        return {"batch_size": self.batch_size, "max_length": self.max_length}

    def load(self) -> tuple[Any, Any]:
        """Return the classifier and the stream of texts."""
        from lrputils.data.texts import stream_texts
        from lrputils.model.classifier import load_classifier

        device = _device(self.device)
        classifier = load_classifier(self.model, revision=self.revision, device=device)
        return classifier, stream_texts(self.dataset, **self.of_texts)


def _device(name: str) -> str:
    """Give each process of `torchrun` a GPU of its own."""
    import torch

    place = os.environ.get("LOCAL_RANK")
    if name != "auto" or place is None or not torch.cuda.is_available():
        return name
    return f"cuda:{int(place) % torch.cuda.device_count()}"


def listed(names: str) -> tuple[str, ...]:
    """Split "a, b"."""
    return tuple(filter(None, names.replace(" ", "").split(",")))


def command(options: argparse.Namespace) -> str:
    """Return the command of these options; of local paths only the last two parts."""
    parameters = inspect.signature(options.run).parameters
    words = options.verb.split() if " " in options.verb else ["lrputils", options.verb]
    for name, value in vars(options).items():
        if name in _LEFT_OUT or value is None or value is False or value in ((), [], ""):
            continue
        said = [",".join(value)] if isinstance(value, tuple) else value
        values = [shortened(str(one)) for one in (said if isinstance(said, list) else [said])]
        if name in parameters and parameters[name].kind is Parameter.POSITIONAL_ONLY:
            words += values
        elif len(name) == 1:  # given once a value
            words += [word for one in values for word in (flag(name), one)]
        else:
            words += [flag(name), *([] if value is True else values)]
    return shlex.join([*words, "--out", "DIR"])


def flag(name: str) -> str:
    """Return the option that sets a parameter."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def shortened(place: str) -> str:
    """Return a data set's or model's name as others may read it: of a path, the last two parts."""
    name, comma, options = place.partition(",")
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute() or name.startswith("."):
        name = "/".join(path.parts[-2:])
    return name + comma + options
