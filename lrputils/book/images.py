"""What an executed chapter shows: its images, and the figures that it lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

_AS_TEXT = re.compile(r"<\w+ size \d+x\d+ with \d+ Axes>")


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
