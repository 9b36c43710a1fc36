"""A chapter's two twins, the MyST text, which is the truth, and the notebook executed from it.

And the figures that an executed one lacks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from lrputils.mistakes import plainly
from lrputils.runs.folders import atomic_write

# Twins are paired, so that `jupytext --sync` and Jupyter know of each other's.
METADATA = {
    "jupytext": {"default_lexer": "ipython3", "formats": "ipynb,md:myst"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
_ROWS = re.compile(r"\s\((?:\{download\}`[^`]+`(?:[\s,]+(?:and )?)?)+\)")  # only to be downloaded
# {role}`text`, or {role}`text <target>`
_ROLE = re.compile(r"\{([\w:]+)\}`([^`<]+?)(?:\s*<[^`>]+>)?`")
_PLAIN = {"cite": "[{}]", "eq": "({})", "numref": "[{}]", "prf:ref": "[{}]"}
_ASIDE = re.compile(r" \(\{(?:doc|numref|prf:ref)\}`([\w-]+)`\)")  # a reference in brackets
# A fence, {directive}, its title, options, and what it holds; a label before a heading.
_DIRECTIVE = re.compile(
    r"^(`{3,}|:{3,})\{([\w:-]+)\} *([^\n]*)\n((?::[\w-]+:[^\n]*\n)*)\n?(.*?)\n\1[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_LABEL = re.compile(r"^\([\w-]+\)=\n", re.MULTILINE)
_TARGET = re.compile(r"^:(?:label|name): *([\w-]+)$", re.MULTILINE)


def read_text(path: Path) -> NotebookNode:
    """Return the unexecuted notebook that a chapter's MyST text describes, always the same one.

    Raises:
        ValueError: it describes none, as with a broken front matter.
    """
    with plainly(f"The chapter {path.name}"):
        notebook = jupytext.read(path, fmt="md:myst")
    for number, cell in enumerate(notebook.cells, start=1):
        cell["id"] = f"cell-{number}"
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def without_traces(notebook: NotebookNode) -> NotebookNode:
    """Strip, in place, what papermill notes of a run; return the notebook."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
    return notebook


def without_roles(notebook: NotebookNode) -> NotebookNode:
    """Say, in place, in plain Markdown what roles say that only the book's pages know.

    A reference becomes its text, a glued fact its value, as the cells of `bind` left it; a
    directive becomes its name in bold and what it holds, and a caption stands below its figure.
    Figures and tables are numbered; what only another chapter holds is not pointed at in brackets.
    """
    names = _names(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    glued = {
        output.metadata["scrapbook"]["name"]: value
        for output in outputs
        if "scrapbook" in output.get("metadata", {})
        for value in output.data.values()
    }

    def plain(role: re.Match[str]) -> str:
        kind, text = role.groups()
        name, _, form = text.partition(":")
        if kind == "glue:text" and name in glued:
            return format(ast.literal_eval(glued[name]), form)
        if text in names:
            return names[text]
        return _PLAIN.get(kind, "{}").format(text)

    def without(text: str) -> str:
        text = _ROWS.sub("", text)
        known = _ASIDE.sub(lambda aside: aside[0] if aside[1] in names else "", text)
        return _ROLE.sub(plain, known)

    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        figure = cell.metadata.get("mystnb", {}).get("figure", {})
        if cell.cell_type == "markdown":
            cell.source = without(_DIRECTIVE.sub(_written_out, cell.source))
            cell.source = _LABEL.sub("", cell.source)
        elif caption := figure.get("caption"):
            number = names.get(figure.get("name"), "Figure")
            cells.append(new_markdown_cell(f"*{number}. {without(caption)}*"))
    notebook.cells = cells
    return notebook


def _names(notebook: NotebookNode) -> dict[str, str]:
    """What a reference calls each figure and table, by number, and each statement, by its title."""
    names: dict[str, str] = {}
    for cell in notebook.cells:
        label = cell.metadata.get("mystnb", {}).get("figure", {}).get("name", "")
        if label:
            kind = "Table" if label.startswith("tab-") else "Figure"
            number = 1 + sum(name.startswith(kind) for name in names.values())
            names[label] = f"{kind} {number}"
        for directive in _DIRECTIVE.finditer(cell.source):
            _, kind, title, options, _ = directive.groups()
            if kind.startswith("prf:") and (target := _TARGET.search(options)):
                kind = kind.removeprefix("prf:").capitalize()
                names[target[1]] = f"{kind} “{title}”" if title else f"the {kind.lower()}"
    return names


def _written_out(directive: re.Match[str]) -> str:
    """A directive in plain Markdown."""
    _, kind, title, _, body = directive.groups()
    if kind == "table":
        return f"{body}\n\n*{title}*"
    if kind == "solution":
        return f"<details><summary>Solution</summary>\n\n{body}\n\n</details>"
    name = kind.removeprefix("prf:").capitalize()
    if kind == "admonition":
        name, title = title, ""
    return f"**{name}{title and f' ({title})'}.** {body}"


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write `notebook` to `path` in one step: a reader sees the old file or the new one."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as stream:
        nbformat.write(notebook, stream)


def missing_figures(notebook: NotebookNode) -> Iterator[str]:
    """Yield a sentence for each cell that should show a figure and does not."""
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        wanted = cell.metadata.get("mystnb", {})
        table = wanted.get("figure", {}).get("name", "").startswith("tab-")
        kinds = [kind for output in cell.outputs for kind in output.get("data", {})]
        shows = any(kind.startswith("image/") for kind in kinds)
        if {"figure", "image"} & wanted.keys() and not (table or shows):
            yield f"code cell {number} has a figure's caption or alt text, but shows no image"
