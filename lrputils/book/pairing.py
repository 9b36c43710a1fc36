"""A chapter's two twins: the MyST text, which is the truth, and the notebook executed from it."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from lrputils.runs.folders import atomic_write

# Cell metadata of an execution or a front end, of no use to a reader.
_TRACES = ("papermill", "execution", "collapsed", "scrolled", "ExecuteTime")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
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
