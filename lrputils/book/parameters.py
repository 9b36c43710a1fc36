"""A chapter's parameters: what it declares, and whether a given value fits.

A profile is a named set of them for the whole book, a mapping in `profiles/<name>.yml`. Its `_all:`
holds parameters for every chapter that declares them; a section named after a chapter holds that
chapter's own and wins.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import papermill
import yaml
from nbformat import NotebookNode

import lrputils
from lrputils.book.layout import DEFAULT, Book, BookError
from lrputils.book.notebooks import read_text
from lrputils.book.values import check_model, check_value
from lrputils.runs.folders import RUN

_OF_TEXTS = ("dataset", "columns", "split", "limit")  # what `load_texts` is given in a chapter
# A month 13 is a ValueError, as is what is no UTF-8.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)


class Parameter(NamedTuple):
    """One parameter: its default, and the types that its value may have, as `int` or `None`."""

    default: Any
    wants: list[str]


def _kind(value: Any) -> str:
    items = sorted({type(item).__name__ for item in value}) if isinstance(value, list) else ()
    name = "None" if value is None else type(value).__name__
    return f"{name} of {' and '.join(items)}" if items else name


def declared(notebook: NotebookNode) -> dict[str, Parameter]:
    """Return the parameters that the cell tagged `parameters` declares, as papermill reads them.

    Each is `name = plain value`; what type a default of None stands for says `# type: int`.
    """
    found = {}
    for name, told in papermill.inspect_notebook(notebook).items():
        default = ast.literal_eval(told["default"])
        wants = [_kind(default)]
        if default is None and told["inferred_type_name"] != "None":
            wants.insert(0, told["inferred_type_name"])
        found[name] = Parameter(default, wants + ["int"] * ("float" in wants))
    return found


def check_given(
    parameters: Mapping[str, Parameter], chapter: str, given: Mapping[str, Any]
) -> None:
    """Check every given name, type and value against the chapter's parameters.

    BookError for a name that the chapter does not declare, or a value of a wrong type or one that
    it can never take; the message lists the right ones.
    """
    wants = {name: " or ".join(p.wants) for name, p in parameters.items()}
    right = "; ".join(f"{n} ({wants[n]}, default {p.default!r})" for n, p in parameters.items())
    for name, value in given.items():
        if name not in parameters:
            raise BookError(f"{chapter} has no parameter {name!r}; it has: {right or 'none'}")
        if (kind := _kind(value)) not in parameters[name].wants:
            raise BookError(
                f"{chapter}: {name} = {value!r} is of type {kind}, wanted: {wants[name]}"
            )
        try:
            check_value(name, value)
        except ValueError as error:
            raise BookError(f"{chapter}: {error}") from None


def from_command_line(texts: Sequence[str], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values in `name=value` texts: the first reading that fits, YAML's or the text's.

    Raises:
        BookError: a text without `=`.
    """
    values = {}
    for text in texts:
        name, equals, raw = text.partition("=")
        if not equals or not name.isidentifier():
            raise BookError(f"-p {text!r} is not of the form name=value, as -p limit=20")
        wanted = parameters[name].wants if name in parameters else []
        readings = []
        for read in (yaml.safe_load, str, float):  # YAML takes 1e-3 for a text
            with suppress(*_NOT_YAML):
                value = read(raw)
                readings.append(raw if value == raw.strip() else value)  # a label begins blank
        values[name] = next((one for one in readings if _kind(one) in wanted), readings[0])
    return values


class _Once(yaml.SafeLoader):
    """Reads what `yaml.safe_load` does, and refuses a key that stands twice, or an alias."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name): write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := sorted({str(key) for key in keys if keys.count(key) > 1}):
            raise yaml.YAMLError(f"{', '.join(twice)} stands twice")
        return super().construct_mapping(node, deep)


def _read_profile(book: Book, name: str) -> dict[str, dict[str, Any]]:
    path = Path(name) if name.endswith((".yml", ".yaml")) else book.root / f"profiles/{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in (book.root / "profiles").glob("*.yml")))
        raise BookError(f"no profile {name!r}; the profiles are: {known}, or the path of a .yml")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Once) or {}
    except _NOT_YAML as error:
        raise BookError(f"profile {path.name} is not YAML: {error}") from None
    sections = content.values() if isinstance(content, dict) else [content]
    if not all(isinstance(section, dict | None) for section in sections):
        raise BookError(f"profile {path.name} must be a mapping of chapters, each name: value")
    return {section: values or {} for section, values in content.items()}


def load_parameters(
    book: Book, profile: str = DEFAULT, names: Sequence[str] = (), assigned: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the parameters of the named chapters, or of all, less those that are the defaults.

    They come from a profile, a name or a YAML file, and from `name=value` texts, which win.
    BookError for an unknown profile, chapter or parameter, or a wrong type, anywhere in a profile.
    """
    sections = _read_profile(book, profile)
    for_all = sections.pop("_all", {})
    chosen = [book.chapter(name).stem for name in names] or book.chapters()
    resolved, unused = {}, set(for_all)
    for chapter, text in book.chapters().items():
        parameters = declared(read_text(text))
        given = {name: value for name, value in for_all.items() if name in parameters}
        unused -= given.keys()
        given |= sections.pop(chapter, {})
        if chapter in chosen:
            given |= from_command_line(assigned, parameters)
        check_given(parameters, chapter, given)
        if chapter in chosen:
            resolved[chapter] = {n: v for n, v in given.items() if v != parameters[n].default}
    if sections:
        known = ", ".join(book.chapters())
        raise BookError(
            f"profile {profile}: no chapter {next(iter(sections))!r}; the chapters are: {known}"
        )
    if unused:
        raise BookError(f"profile {profile}: no chapter has the _all parameter(s) {sorted(unused)}")
    return resolved


def check_inputs(notebook: NotebookNode, chapter: str, given: Mapping[str, Any]) -> None:
    """Find the model, data, device and rows that a chapter is given; defaults are taken as good.

    The data are read by the package's own loading functions, so the message is the one that the
    running chapter would give.

    Raises:
        BookError: one of them is not there, or cannot be read; the message says which and why.
    """
    defaults = {name: p.default for name, p in declared(notebook).items()}
    of_texts = {name: v for name, v in (defaults | given).items() if name in _OF_TEXTS}
    try:
        if "limit" in defaults and of_texts.keys() & given.keys():
            lrputils.load_texts(**of_texts)
        if "model" in given:
            check_model(defaults | given)
        if "device" in given:
            from lrputils.model.classifier import find_device

            find_device(given["device"])
        if given.get("scores") and not Path(given["scores"]).is_file():
            raise FileNotFoundError(f"scores={given['scores']!r} is no file")
        for name in ("rows", "reviews_rows"):
            if name in given and not Path(given[name], RUN).is_file():
                raise FileNotFoundError(
                    f"{name}={given[name]!r} holds no run: `lrputils evaluate --methods … "
                    "--readouts word,sum,post-norm --layers --curves N --out DIR` writes one"
                )
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise BookError(f"{chapter}: {error}") from error
