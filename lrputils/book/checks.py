"""What a chapter must be to be accepted: executed, clean, equal to its text, with alt texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from lrputils.book.pairing import differences, read_notebook
from lrputils.book.regression import stated_tolerance

_PROGRESS = re.compile(r"\d+%\|.*\||\d+(?:\.\d+)?\s?(?:it|s|B|cell)/(?:s|it|cell)\b")
_ABSOLUTE = re.compile(
    r"(?<![\w:/.])(?:/(?:home|root|Users|tmp|work|usr|opt|var|mnt|private)/|[A-Za-z]:\\\\?Users)"
)
_IGNORED = {"nbval-ignore-output", "nbval-skip"}


def problems(text: Path, notebook: Path) -> list[str]:
    """Return what is wrong with a chapter, one sentence each; empty if nothing is."""
    found = differences(text, notebook)
    if notebook.is_file():
        found += list(output_problems(read_notebook(notebook)))
    return found


def output_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield what is wrong with the notebook's cells and their outputs."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(cell.outputs for cell in code):
        yield "no cell has an output: there is nothing to compare"
    ignored = sum(bool(_IGNORED & set(cell.metadata.get("tags", []))) for cell in code)
    if ignored > 1:
        yield f"{ignored} cells are exempt from comparison; at most one may be"
    for number, cell in enumerate(code, start=1):
        for problem in _cell_problems(cell):
            yield f"code cell {number}: {problem}"


def _cell_problems(cell: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    if cell.source.strip() and cell.execution_count is None:
        yield "was not executed"
    if "injected-parameters" in tags:
        yield "holds parameters injected by a run"
    if "raises-exception" in tags:
        yield "is expected to raise"
    try:
        stated_tolerance(cell.metadata)
    except (ValueError, KeyError, TypeError) as error:
        yield f"regression metadata: {error!r}"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"raised {output.ename}"
        if output.get("name") == "stderr":
            yield f"wrote to stderr: {output.text[:80]!r}"
        yield from _content_problems(output, cell)


def _content_problems(output: NotebookNode, cell: NotebookNode) -> Iterator[str]:
    data = output.get("data", {"text/plain": output.get("text", "")})
    for mime, content in data.items():
        if mime.startswith("image/"):
            alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            if not str(alt).strip():
                yield "shows an image without alt text (metadata mystnb: image: alt:)"
            continue
        words = content if isinstance(content, str) else str(content)
        if _PROGRESS.search(words):
            yield "left a progress bar or a rate among its outputs"
        if match := _ABSOLUTE.search(words):
            yield f"shows an absolute path ({match.group()}…)"
