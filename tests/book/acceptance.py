"""What a chapter must be to be accepted: executed, clean, equal to its text, with alt texts."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import nbformat
from nbformat import NotebookNode

from lrputils.book.notebooks import missing_figures, read_text
from lrputils.book.parameters import declared
from lrputils.book.regression import stated_tolerance

_PROGRESS = re.compile(r"\d+%\|.*\||\d+(?:\.\d+)?\s?(?:it|s|B|cell)/(?:s|it|cell)\b")
_ABSOLUTE = re.compile(
    r"(?<![\w:/.])(?:/(?:home|root|Users|tmp|work|usr|opt|var|mnt|private)/|[A-Za-z]:\\\\?Users)"
)
_IGNORED = {"nbval-ignore-output", "nbval-skip"}
# A page's column on a phone, and the smallest type that can be read there, in CSS pixels.
_PHONE_COLUMN, _SMALLEST = 342, 9
_SVG_WIDTH = re.compile(r'<svg[^>]* width="([\d.]+)pt"')
_GLYPHS = re.compile(r"\bscale\(([\d.]+) -")
_TAG = "{http://www.w3.org/2000/svg}"


def problems(text: Path, notebook: Path) -> list[str]:
    """Return what is wrong with a chapter, one sentence each; empty if nothing is."""
    if not notebook.is_file():
        return [f"{notebook.name} does not exist: run `lrputils execute {text.stem}`"]
    executed = nbformat.read(notebook, 4)
    return [*differences(text, notebook), *output_problems(executed)]


def differences(text: Path, notebook: Path) -> Iterator[str]:
    """Yield in what the notebook's cells differ from the text's, one sentence a cell."""
    written, executed = read_text(text).cells, nbformat.read(notebook, 4).cells
    if len(written) != len(executed):
        yield f"{text.name} has {len(written)} cells, {notebook.name} has {len(executed)}"
    for number, (left, right) in enumerate(zip(written, executed, strict=False), start=1):
        parts = ("id", "cell_type", "source", "metadata")
        if part := next((part for part in parts if left[part] != right[part]), None):
            yield f"cell {number} of {notebook.name} differs in {part}"


def unread(notebook: NotebookNode) -> list[str]:
    """Return the declared parameters that no other cell of the notebook names."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    others = [c.source for c in code if "parameters" not in c.metadata.get("tags", [])]
    names = set(re.findall(r"\w+", "\n".join(others)))
    return [name for name in declared(notebook) if name not in names]


def output_problems(notebook: NotebookNode) -> Iterator[str]:
    """Yield what is wrong with the notebook's cells and their outputs."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if not any(cell.outputs for cell in code):
        yield "no cell has an output: there is nothing to compare"
    ignored = sum(bool(_IGNORED & set(cell.metadata.get("tags", []))) for cell in code)
    if ignored > 1:
        yield f"{ignored} cells are exempt from comparison; at most one may be"
    yield from missing_figures(notebook)
    for number, cell in enumerate(code, start=1):
        yield from (f"code cell {number}: {problem}" for problem in _cell_problems(cell, notebook))


def _cell_problems(cell: NotebookNode, notebook: NotebookNode) -> Iterator[str]:
    tags = set(cell.metadata.get("tags", []))
    if cell.source.strip() and cell.execution_count is None:
        yield "was not executed"
    if "injected-parameters" in tags:
        yield "holds parameters injected by a run"
    if "raises-exception" in tags:
        yield "is expected to raise"
    try:
        stated_tolerance(cell, notebook)
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
            if mime == "image/svg+xml" and (pixels := _smallest_type(content)) < _SMALLEST:
                yield f"shows type of {pixels:.1f} px on a phone: below {_SMALLEST}"
            continue
        if _PROGRESS.search(str(content)):
            yield "left a progress bar or a rate among its outputs"
        if match := _ABSOLUTE.search(str(content)):
            yield f"shows an absolute path ({match.group()}…)"


def _smallest_type(svg: str) -> float:
    """Return the size in pixels of an SVG's smallest type where a page is as narrow as a phone."""
    width = float(_SVG_WIDTH.search(svg).group(1))
    points = 100 * min(map(float, _GLYPHS.findall(svg)), default=1.0)  # glyphs are 100 units high
    return points * min(_PHONE_COLUMN / width, 96 / 72)


def legend_colours(svg: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each label in the legends of an SVG of matplotlib's, and the colours beside it."""
    target = ElementTree.TreeBuilder(
        insert_comments=True
    )  # a text is drawn; it stands in a comment
    page = ElementTree.fromstring(svg, ElementTree.XMLParser(target=target))
    for legend in (g for g in page.iter(f"{_TAG}g") if g.get("id", "").startswith("legend_")):
        colours: set[str] = set()
        for part in legend:
            if part.get("id", "").startswith("text_"):
                texts = [some.text.strip() for some in part.iter(ElementTree.Comment)]
                yield " ".join(texts), colours - {"#ffffff"}
                colours = set()
            styles = [some.get("style", "") for some in part.iter()]
            colours |= {*re.findall(r"(?:fill|stroke): (#\w+)", " ".join(styles))}
