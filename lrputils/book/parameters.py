"""A chapter's parameters: what it declares, what it reads, and whether a given value fits."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

import yaml
from nbformat import NotebookNode

from lrputils.book.layout import BookError
from lrputils.book.values import check_value

MOST = 8
# Papermill's own convention for a parameter whose default does not tell its type.
_TYPE_COMMENT = re.compile(r"#\s*type:\s*(\w+)")
_SCALARS = {"bool": bool, "int": int, "float": float, "str": str, "list": list}


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its default, and the types that its value may have."""

    name: str
    default: Any
    types: tuple[type, ...]
    item: type | None = None

    @property
    def wants(self) -> str:
        """The types in words, e.g. `int or None`."""
        names = ["None" if kind is type(None) else kind.__name__ for kind in self.types]
        if self.item is not None:
            names = [f"list of {self.item.__name__}" if n == "list" else n for n in names]
        return " or ".join(names)

    def fits(self, value: Any) -> bool:
        """Whether `value` has one of the types; an int fits float, a bool fits only bool."""
        if isinstance(value, list) and list in self.types and self.item is not None:
            return all(_is(item, self.item) for item in value)
        return any(_is(value, kind) for kind in self.types)


def _is(value: Any, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _commented_types(line: str) -> tuple[type, ...]:
    """Return the types that `name = None  # type: str …` announces, None among them."""
    comment = _TYPE_COMMENT.search(line)
    return (_SCALARS[comment.group(1)], type(None)) if comment else (type(None),)


def _parameter(statement: ast.stmt, source: str, chapter: str) -> Parameter:
    try:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            default = ast.literal_eval(statement.value)
            if default is None:
                line = source.splitlines()[statement.lineno - 1]
                return Parameter(statement.targets[0].id, None, _commented_types(line))
            item = type(default[0]) if isinstance(default, list) and default else None
            return Parameter(statement.targets[0].id, default, (type(default),), item)
    except (ValueError, KeyError, AttributeError):
        pass
    raise BookError(
        f"{chapter}: `{ast.unparse(statement)}` in the parameters cell is not `name = plain value`"
    )


def declared(notebook: NotebookNode, chapter: str) -> dict[str, Parameter]:
    """Return the parameters that the cell tagged `parameters` declares, by name, in order.

    Raises:
        BookError: there is more than one such cell, a statement that is no plain assignment, or
            more than eight parameters.
    """
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) > 1:
        raise BookError(f"{chapter}: {len(cells)} cells are tagged `parameters`; one is allowed")
    source = cells[0].source if cells else ""
    found = [_parameter(statement, source, chapter) for statement in ast.parse(source).body]
    if len(found) > MOST:
        raise BookError(f"{chapter}: {len(found)} parameters; at most {MOST} are allowed")
    return {parameter.name: parameter for parameter in found}


def unread(notebook: NotebookNode, chapter: str) -> list[str]:
    """Return the declared parameters that no other cell of the notebook reads."""
    read: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            nodes = ast.walk(ast.parse(_plain_python(cell.source)))
            read |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return [name for name in declared(notebook, chapter) if name not in read]


def _plain_python(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if not line.startswith(("%", "!")))


def checked(notebook: NotebookNode, chapter: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` after checking every name, type and value against the chapter.

    Raises:
        BookError: a name that the chapter does not declare or never reads, or a value of a wrong
            type or one that it can never take; the message lists the right ones.
    """
    parameters, never_read = declared(notebook, chapter), unread(notebook, chapter)
    right = "; ".join(f"{p.name} ({p.wants}, default {p.default!r})" for p in parameters.values())
    for name, value in given.items():
        if name not in parameters:
            raise BookError(f"{chapter} has no parameter {name!r}; it has: {right or 'none'}")
        if name in never_read:
            raise BookError(f"{chapter} declares the parameter {name!r} but never reads it")
        if not parameters[name].fits(value):
            kind = type(value).__name__
            wants = parameters[name].wants
            raise BookError(f"{chapter}: {name} = {value!r} is of type {kind}, wanted: {wants}")
        try:
            check_value(name, value)
        except ValueError as error:
            raise BookError(f"{chapter}: {error}") from None
    return dict(given)


def from_command_line(texts: list[str], parameters: dict[str, Parameter]) -> dict[str, Any]:
    """Return the values in `name=value` texts, read as YAML, or as they stand for a string.

    Raises:
        BookError: a text without `=`.
    """
    values = {}
    for text in texts:
        name, equals, raw = text.partition("=")
        if not equals or not name.isidentifier():
            raise BookError(f"-p {text!r} is not of the form name=value")
        wanted = parameters.get(name)
        try:
            value = yaml.safe_load(raw)
        except yaml.YAMLError:
            value = raw
        if wanted is not None and not wanted.fits(value) and str in wanted.types:
            value = raw
        elif wanted is not None and float in wanted.types and isinstance(value, str):
            value = _float_or_text(value)
        values[name] = value
    return values


def _float_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
