"""A chapter's two twins, the MyST text, which is the truth, and the notebook executed from it.

And what an executed one shows: its images, and the figures that it lacks.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from lrputils.runs.folders import atomic_write

# Cell metadata of an execution or a front end, of no use to a reader.
_TRACES = ("papermill", "execution", "collapsed", "scrolled", "ExecuteTime")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
_AS_TEXT = re.compile(r"<\w+ size \d+x\d+ with \d+ Axes>")
_LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}


def read_text(path: Path) -> NotebookNode:
    """Return the unexecuted notebook that a chapter's MyST text describes.

    A cell's id is derived from its source, so that the same text gives the same notebook.
    """
    notebook = jupytext.read(path, fmt="md:myst")
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
    notebook.metadata = nbformat.from_dict({"kernelspec": _KERNEL, "language_info": _LANGUAGE})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def read_notebook(path: Path) -> NotebookNode:
    """Return the notebook at `path` in the current format, without validating outputs."""
    return nbformat.read(path, as_version=4)


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write `notebook` to `path` in one step: a reader sees the old file or the new one."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as stream:
        nbformat.write(notebook, stream)


def without_traces(notebook: NotebookNode) -> NotebookNode:
    """Strip, in place, what running a notebook leaves in its metadata; return the notebook."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata["kernelspec"] = _KERNEL
    notebook.metadata["language_info"] = _LANGUAGE
    for cell in notebook.cells:
        for trace in _TRACES:
            cell.metadata.pop(trace, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
    return notebook


def images(cell: NotebookNode) -> list[str]:
    """Return the kinds of the images among a code cell's outputs, one for each output with any."""
    shown = [
        [kind for kind in output.get("data", {}) if kind.startswith("image/")]
        for output in cell.get("outputs", [])
    ]
    return [kinds[0] for kinds in shown if kinds]


def missing_figures(notebook: NotebookNode) -> Iterator[str]:
    """Yield a sentence for each cell that should show a figure and does not, or only its name."""
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            bare = not any(kind.startswith("image/") for kind in data)
            if bare and (left := _AS_TEXT.search(str(data.get("text/plain", "")))):
                yield f"code cell {number} shows {left.group()} instead of the figure"
                break
        else:
            wanted = cell.metadata.get("mystnb", {})
            table = wanted.get("figure", {}).get("name", "").startswith("tab-")
            if {"figure", "image"} & wanted.keys() and not (table or images(cell)):
                yield f"code cell {number} has a figure's caption or alt text, but shows no image"
