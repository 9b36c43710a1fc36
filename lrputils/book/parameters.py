"""A chapter's parameters: what it declares, and whether a given value fits.

A profile is a named set of them for the whole book, a mapping in `profiles/<name>.yml`. Its `_all:`
holds parameters for every chapter that declares them; a section named after a chapter holds that
chapter's own and wins.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from nbformat import NotebookNode

from lrputils.book.layout import DEFAULT, Book, BookError
from lrputils.book.notebooks import read_text
from lrputils.book.values import check_value

MOST = 8
# A month 13 is a ValueError, as is what is no UTF-8.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# Papermill's own convention for a parameter whose default does not tell its type.
_TYPE_COMMENT = re.compile(r"#\s*type:\s*(\w+)")
_SCALARS = {"bool": bool, "int": int, "float": float, "str": str, "list": list}


@dataclass(frozen=True)
class Parameter:
    """One parameter: its default, and the types that its value may have."""

    default: Any
    types: tuple[type, ...]
    item: type | None = None

    @property
    def wants(self) -> str:
        """The types in words, e.g. `int or None`."""
        names = {type(None): "None"} | (
            {list: f"list of {self.item.__name__}"} if self.item else {}
        )
        return " or ".join(names.get(kind, kind.__name__) for kind in self.types)

    def fits(self, value: Any) -> bool:
        """Whether `value` has one of the types; an int fits float, a bool fits only bool."""
        if isinstance(value, list) and self.item:
            return all(type(item) in _taken(self.item) for item in value)
        return type(value) in _taken(*self.types)


def _taken(*kinds: type) -> tuple[type, ...]:
    return (*kinds, int) if float in kinds else kinds


def _parameter(statement: ast.stmt, source: str, chapter: str) -> tuple[str, Parameter]:
    with suppress(ValueError, KeyError):
        targets = getattr(statement, "targets", [])
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            default = ast.literal_eval(statement.value)
            comment = _TYPE_COMMENT.search(source.splitlines()[statement.lineno - 1])
            announced = (_SCALARS[comment[1]],) if default is None and comment else ()
            item = type(default[0]) if isinstance(default, list) and default else None
            return targets[0].id, Parameter(default, (*announced, type(default)), item)
    raise BookError(
        f"{chapter}: `{ast.unparse(statement)}` in the parameters cell is not `name = plain value`"
    )


# By hand: papermill's `inspect_notebook` misreads `b = "x # y"` and ignores `a, b = 1, 2`.
def declared(notebook: NotebookNode, chapter: str) -> dict[str, Parameter]:
    """Return the parameters that the cell tagged `parameters` declares, by name, in order.

    BookError for more than one such cell, a statement that is no plain assignment, or too many
    parameters.
    """
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) > 1:
        raise BookError(f"{chapter}: {len(cells)} cells are tagged `parameters`; one is allowed")
    source = cells[0].source if cells else ""
    found = dict(_parameter(one, source, chapter) for one in ast.parse(source).body)
    if len(found) > MOST:
        raise BookError(f"{chapter}: {len(found)} parameters; at most {MOST} are allowed")
    return found


def checked(notebook: NotebookNode, chapter: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` after checking every name, type and value against the chapter.

    BookError for a name that the chapter does not declare, or a value of a wrong type or one that
    it can never take; the message lists the right ones.
    """
    parameters = declared(notebook, chapter)
    right = "; ".join(f"{n} ({p.wants}, default {p.default!r})" for n, p in parameters.items())
    for name, value in given.items():
        if name not in parameters:
            raise BookError(f"{chapter} has no parameter {name!r}; it has: {right or 'none'}")
        if not parameters[name].fits(value):
            kind, wants = type(value).__name__, parameters[name].wants
            raise BookError(f"{chapter}: {name} = {value!r} is of type {kind}, wanted: {wants}")
        try:
            check_value(name, value)
        except ValueError as error:
            raise BookError(f"{chapter}: {error}") from None
    return dict(given)


def from_command_line(texts: list[str], parameters: dict[str, Parameter]) -> dict[str, Any]:
    """Return the values in `name=value` texts: the first reading that fits, YAML's or the text's.

    Raises:
        BookError: a text without `=`.
    """
    values = {}
    for text in texts:
        name, equals, raw = text.partition("=")
        if not equals or not name.isidentifier():
            raise BookError(f"-p {text!r} is not of the form name=value")
        readings = []
        for read in (yaml.safe_load, str, float):  # YAML takes 1e-3 for a text
            with suppress(*_NOT_YAML):
                readings.append(read(raw))
        fitting = [r for r in readings if name in parameters and parameters[name].fits(r)]
        values[name] = (fitting or readings)[0]
    return values


def _read_profile(book: Book, name: str) -> dict[str, dict[str, Any]]:
    path = Path(name) if name.endswith((".yml", ".yaml")) else book.root / f"profiles/{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(other.stem for other in (book.root / "profiles").glob("*.yml")))
        raise BookError(f"no profile {name!r}; the profiles are: {known}, or the path of a .yml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except _NOT_YAML as error:
        raise BookError(f"profile {path.name} is not YAML: {error}") from None
    sections = content.values() if isinstance(content, dict) else [content]
    if not all(isinstance(section, dict | None) for section in sections):
        raise BookError(f"profile {path.name} must be a mapping of chapters, each name: value")
    return {section: values or {} for section, values in content.items()}


def load_profile(book: Book, name: str = DEFAULT) -> dict[str, dict[str, Any]]:
    """Return each chapter's parameters under a profile (a name or a YAML file), less the defaults.

    BookError for an unknown profile, chapter or parameter, or a wrong type.
    """
    sections = _read_profile(book, name)
    for_all = sections.pop("_all", {})
    texts = {chapter.name: chapter.text for chapter in book.chapters()}
    if strange := [section for section in sections if section not in texts]:
        known = ", ".join(texts)
        raise BookError(f"profile {name}: no chapter {strange[0]!r}; the chapters are: {known}")
    resolved, used = {chapter: {} for chapter in texts}, set()
    for chapter in texts if for_all else filter(sections.get, texts):
        notebook = read_text(texts[chapter])
        parameters = declared(notebook, chapter)
        shared = {key: value for key, value in for_all.items() if key in parameters}
        used |= shared.keys()
        values = checked(notebook, chapter, {**shared, **sections.get(chapter, {})})
        resolved[chapter] = {k: v for k, v in values.items() if v != parameters[k].default}
    if unknown := sorted(for_all.keys() - used):
        raise BookError(f"profile {name}: no chapter has the _all parameter(s) {unknown}")
    return resolved


def check_inputs(notebook: NotebookNode, chapter: str, given: Mapping[str, Any]) -> None:
    """Find the model, the data and the device that a chapter is given; defaults are taken as good.

    The data are read by the package's own loading functions, so the message is the one that the
    running chapter would give.

    Raises:
        BookError: one of them is not there, or cannot be read; the message says which and why.
    """
    values = {name: p.default for name, p in declared(notebook, chapter).items()} | dict(given)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    try:
        if "load_texts(dataset" in code:
            from lrputils.data.texts import load_texts

            taken = inspect.signature(load_texts).parameters.keys() - {"revision"}  # the model's
            if taken & given.keys():
                load_texts(**{name: values[name] for name in taken & values.keys()})
        if "load_images(" in code and values["dataset"] not in ("digits", "mnist"):
            from lrputils.data.images import load_images

            load_images(values["dataset"], side=2)
        if "load_classifier(" in code and values.get("model") is not None:
            from lrputils.data.files import find_model

            find_model(values["model"], values.get("revision"), parameter="model")
        if values.get("device", "cpu") not in ("auto", "cpu"):
            from lrputils.model.classifier import find_device

            find_device(values["device"])
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise BookError(f"{chapter}: {error}") from error
