"""A chapter's two twins, the MyST text, which is the truth, and the notebook executed from it.

And the figures that an executed one lacks.
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

_TRACES = ("papermill", "execution")  # what an execution notes of a cell
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
_AS_TEXT = re.compile(r"<\w+ size \d+x\d+ with \d+ Axes>")


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
    notebook.metadata = nbformat.from_dict(_METADATA)
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
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        kept = {key: v for key, v in cell.metadata.items() if key not in _TRACES and v != []}
        cell.metadata = nbformat.from_dict(kept)
    return notebook


def missing_figures(notebook: NotebookNode) -> Iterator[str]:
    """Yield a sentence for each cell that should show a figure and does not, or only its name."""
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), start=1):
        shown = [out.get("data", {"text/plain": out.get("text", "")}) for out in cell.outputs]
        bare = [data for data in shown if not any(kind.startswith("image/") for kind in data)]
        wanted = cell.metadata.get("mystnb", {})
        table = wanted.get("figure", {}).get("name", "").startswith("tab-")
        if left := _AS_TEXT.search(" ".join(str(data.get("text/plain", "")) for data in bare)):
            yield f"code cell {number} shows {left.group()} instead of the figure"
        elif {"figure", "image"} & wanted.keys() and not table and len(bare) == len(shown):
            yield f"code cell {number} has a figure's caption or alt text, but shows no image"
