"""Building the HTML book from executed chapters, with every Sphinx warning an error.

As a Sphinx extension, which `_config.yml` names, it lets pages link to the text, and numbers
the tables that cells caption.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.writers.html5 import HTML5Translator
from sphinx_external_toc.parsing import parse_toc_yaml

import lrputils
from lrputils.book.layout import DEFAULT, Book, BookError
from lrputils.book.results_page import write_results_page

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


# What pages show or load beside themselves.
_CARRIED = (
    "_toc.yml",
    "_static/**/*",
    "vendor/**/*",
    "results/**/*",
    "chapters/*.bib",
    "lrputils/assets/*/README.md",
    "experiments/*/README.md",
    "experiments/assets/*/README.md",
)


def _configuration(book: Book, profile: str, repository: str | None) -> str:
    config = yaml.safe_load((book.root / "_config.yml").read_text(encoding="utf-8"))
    config["html"]["extra_footer"] += f"<p>Version {lrputils.__version__}.</p>"
    if repository:
        config["repository"] = {"url": repository, "branch": "main"}
        config["html"] |= {"use_repository_button": True, "use_edit_page_button": True}
    if profile != DEFAULT:
        config["html"]["announcement"] = (
            f"What the chapters execute was computed under “{profile}”; "
            "rows of the recorded models are the same in every build."
        )
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def assemble(
    book: Book,
    executed: Mapping[str, Path],
    target: Path,
    *,
    profile: str = DEFAULT,
    repository: str | None = None,
) -> None:
    """Lay out what Sphinx reads in `target`: executed notebooks, pages without code, settings.

    A book about a model of the reader's own opens with what the chapters found of it.

    Raises:
        BookError: the table of contents names a page that is not there.
    """
    root = book.root
    carried = [path for pattern in _CARRIED for path in root.glob(pattern) if path.is_file()]
    sources = {path.relative_to(root): path for path in carried}
    for entry in map(Path, parse_toc_yaml(root / "_toc.yml")):
        source = executed.get(entry.name, root / entry.with_suffix(".md"))
        if not source.is_file():
            raise BookError(f"_toc.yml lists {entry}, but there is no {source.name}")
        sources[entry.with_suffix(source.suffix)] = source
    shutil.rmtree(target, ignore_errors=True)
    for path, source in sources.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / path)  # with its time: Sphinx reads again what has changed
    (target / "_config.yml").write_text(_configuration(book, profile, repository), "utf-8")
    if page := write_results_page(executed, target, profile):
        contents = target / "_toc.yml"  # what was the first page follows this one
        toc = yaml.safe_load(contents.read_text(encoding="utf-8"))
        toc.setdefault("parts", []).insert(0, {"chapters": [{"file": toc["root"]}]})
        toc["root"] = str(page.relative_to(target).with_suffix(""))
        contents.write_text(yaml.safe_dump(toc, sort_keys=False, allow_unicode=True), "utf-8")
    (target / "chapters/run_statistics.txt").write_text(_run_statistics(executed), "utf-8")


def build_html(source: Path, output: Path, *, single: bool = False) -> Path:
    """Run Jupyter Book over `source`; return the first page below `output/_build`.

    `single`: one page of everything, to print. BookError, with what is wrong, if Sphinx failed or
    warned, or a page lacks an image of its notebook.
    """
    start = "from lrputils.book import processes; processes.end_with_parent()"
    start += "; from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", str(source), "--path-output", str(output)]
    command += ["-W", "-n", "--keep-going", "--builder", "singlehtml" if single else "html"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    kept = output / "_build/.doctrees"
    if run.returncode and "duplicate" in run.stderr and kept.is_dir():
        shutil.rmtree(kept)  # a label that has moved stands there where it was, too
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    pages = output / "_build" / ("singlehtml" if single else "html")
    index = pages / "index.html"
    first = yaml.safe_load((source / "_toc.yml").read_text(encoding="utf-8"))["root"] + ".html"
    if single and (page := pages / first).is_file():
        text = page.read_text(encoding="utf-8")  # its links are those of a page a folder higher
        index.write_text(text.replace(f'href="{first}#', 'href="#'), encoding="utf-8")
        page.unlink()
    if run.returncode or not index.is_file():
        said = _COLOUR.sub("", f"{run.stdout}\n{run.stderr}").splitlines()
        telling = [line for line in said if "WARNING:" in line or "ERROR:" in line]
        raise BookError("the book did not build:\n" + "\n".join(telling or said[-30:]))
    return index


def _run_statistics(executed: Mapping[str, Path]) -> str:
    """Return, in Markdown, seconds, peak memory and profile of each chapter that was executed."""
    runs = {
        name: nbformat.read(path, 4).metadata.get("lrputils") for name, path in executed.items()
    }
    lines = [
        f"| {{doc}}`{name}` | {run.seconds:.0f} | {run.megabytes:,.0f} | {run.profile} |"
        for name, run in runs.items()
        if run
    ]
    if not lines:
        return "These pages were built from the committed notebooks, without executing any.\n"
    head = ["| chapter | seconds | peak memory (MB) | profile |", "| --- | --: | --: | --- |"]
    return "\n".join([*head, *lines, ""])


class _CaptionedTable(nodes.figure):
    """A table that a cell shows, numbered and captioned as a figure is."""


_AS_FIGURE = HTML5Translator.visit_figure, HTML5Translator.depart_figure


class _NumberTables(SphinxTransform):
    """Count as a table what a cell captions under a name `tab-…`; MyST-NB knows figures alone."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Put a table in the place of each such figure."""
        for figure in [*self.document.findall(nodes.figure)]:
            if any(name.startswith("tab-") for name in figure["names"]):
                table = _CaptionedTable("", *figure.children, **figure.attributes)
                figure.replace_self(table)
                self.document.ids |= dict.fromkeys(table["ids"], table)


class _NameFolds(SphinxTransform):
    """Say on the bar of a cell whose code is folded what is in it, unless the cell says it."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Name each such bar."""
        for cell in self.document.findall(nodes.container):
            told = cell.get("cell_metadata", {}).get("mystnb") or {}
            if cell.get("hide_mode") == "input" and "code_prompt_show" not in told:
                kind = told.get("figure", {}).get("name", "").partition("-")[0]
                name = {"fig": "Code of the figure", "tab": "Code of the table"}.get(kind, "Code")
                if "parameters" in cell["cell_metadata"]["tags"]:
                    name = "Parameters of this page"
                elif cell.astext().startswith(("import ", "from ")):
                    name = "Imports"
                cell["prompt_show"] = name


def _link_to_text(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Let "edit" and "show source" lead to a chapter's text, not to its notebook.

    The single page gets the book's title, which Sphinx leaves out there.
    """
    context["docstitle"] = context.get("docstitle") or app.config.html_title
    if context.get("page_source_suffix") == ".ipynb":
        context["page_source_suffix"] = ".md"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register, after the other extensions and before the theme reads a page's suffix."""
    app.add_enumerable_node(_CaptionedTable, "table", html=_AS_FIGURE)
    app.add_transform(_NumberTables)
    app.add_transform(_NameFolds)
    app.connect("html-page-context", _link_to_text, priority=100)
    # Let the single page show all that pages show: Sphinx drops the rest where any is named.
    known = app.registry.translation_handlers
    known["singlehtml"] = {**known.get("html", {}), **known.get("singlehtml", {})}
    return {"parallel_read_safe": True, "parallel_write_safe": True}
