"""Building the HTML book from executed chapters, with every Sphinx warning an error.

As a Sphinx extension, which `_config.yml` names, it lets pages describe themselves, load no
needless MathJax, and link to the text, and numbers the tables that cells caption.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.writers.html5 import HTML5Translator
from sphinx_external_toc.parsing import parse_toc_yaml

import lrputils
from lrputils.book.layout import DEFAULT, Book, BookError
from lrputils.book.notebooks import read_notebook

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


# What pages show or load beside themselves.
_CARRIED = (
    "_static/**/*",
    "vendor/**/*",
    "results/**/*",
    "chapters/*.bib",
    "lrputils/assets/*/README.md",
    "recipes/*/README.md",
    "CHANGELOG.md",
)


def _configuration(book: Book, profile: str, repository: str | None) -> str:
    config = yaml.safe_load((book.root / "_config.yml").read_text(encoding="utf-8"))
    config["html"]["extra_footer"] += f"<p>Version {lrputils.__version__}.</p>"
    if repository:
        config["repository"] = {"url": repository, "branch": "main"}
        config["html"] |= {"use_repository_button": True, "use_edit_page_button": True}
    if profile != DEFAULT:
        theme = config["sphinx"]["config"].setdefault("html_theme_options", {})
        theme["announcement"] = f"Every number on these pages was computed under “{profile}”."
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

    Raises:
        BookError: the table of contents names a page that is not there.
    """
    root, shown = book.root, {}
    wanted = [path for pattern in ("_toc.yml", *_CARRIED) for path in root.glob(pattern)]
    contents = {target / p.relative_to(root): p.read_bytes() for p in wanted if p.is_file()}
    for entry in map(Path, parse_toc_yaml(root / "_toc.yml")):
        source = executed.get(entry.name, root / entry.with_suffix(".md"))
        if not source.is_file():
            raise BookError(f"_toc.yml lists {entry}, but there is no {source.name}")
        contents[target / entry.with_suffix(source.suffix)] = source.read_bytes()
        if entry.name in executed:
            shown[entry.name] = source
    contents[target / "_config.yml"] = _configuration(book, profile, repository).encode()
    contents[target / "chapters/run_statistics.txt"] = run_statistics(shown).encode()
    for path in [*target.rglob("*")]:
        if path.is_file() and path not in contents:
            path.unlink()
    for path, content in contents.items():
        if not path.is_file() or path.read_bytes() != content:  # Sphinx rebuilds what changed
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def build_html(source: Path, output: Path, *, single: bool = False) -> Path:
    """Run Jupyter Book over `source`; return the first page below `output/_build`.

    `single`: one page of everything, to print. BookError, with what is wrong, if Sphinx failed or
    warned, or a page lacks an image of its notebook.
    """
    start = "from jupyter_book.cli.main import main; main()"
    options = ["build", str(source), "--path-output", str(output), "-W", "-n", "--keep-going"]
    options += ["--builder", "singlehtml"] if single else []
    command = [sys.executable, "-c", start, *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    pages = output / "_build" / ("singlehtml" if single else "html")
    index = pages / "index.html"
    if single and (page := pages / "chapters/intro.html").is_file():
        text = page.read_text(encoding="utf-8")  # its links are those of a page a folder higher
        index.write_text(text.replace('href="chapters/intro.html#', 'href="#'), encoding="utf-8")
        page.unlink()
    if run.returncode or not index.is_file():
        said = _COLOUR.sub("", f"{run.stdout}\n{run.stderr}").splitlines()
        telling = [line for line in said if "WARNING:" in line or "ERROR:" in line]
        raise BookError("the book did not build:\n" + "\n".join(telling or said[-30:]))
    return index


def run_statistics(executed: Mapping[str, Path]) -> str:
    """Return, in Markdown, seconds, peak memory and profile of each chapter that was executed."""
    lines = []
    for name, path in executed.items():
        run = read_notebook(path).metadata.get("lrputils", {})
        if run.get("seconds") is not None:
            memory = f"{run['megabytes']:,.0f}" if "megabytes" in run else "not measured"
            lines.append(
                f"| {{doc}}`{name}` | {run['seconds']:.0f} | {memory} | {run['profile']} |"
            )
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


def _without_mathjax(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Leave out MathJax (2 MB) where the page has no formula of its own.

    Sphinx loads it also on a page whose table of contents leads to one with formulas.
    """
    if app.builder.name == "singlehtml":
        return
    if not app.env.domaindata["math"]["has_equations"].get(page):
        files = context["script_files"]
        files[:] = [file for file in files if "mathjax" not in f"{file} {file.attributes}".lower()]


def _describe(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Say for search engines and link previews what the page's first paragraph says."""
    first = next(iter(tree.findall(nodes.paragraph)), None) if tree else None
    if first is None:
        return
    text = re.sub(r"^Question\. ", "", " ".join(first.astext().split()))
    title = re.sub(r"<[^>]+>", "", context["title"])
    facts = {
        'name="description"': textwrap.shorten(text, 200, placeholder=" …"),
        'property="og:title"': html.unescape(title),
        'property="og:description"': textwrap.shorten(text, 200, placeholder=" …"),
        'property="og:site_name"': app.config.html_title,
        'property="og:type"': "article",
    }
    if base := app.config.html_baseurl:
        facts['property="og:url"'] = f"{base.rstrip('/')}/{app.builder.get_target_uri(page)}"
    tags = [f'<meta {key} content="{html.escape(text)}" />' for key, text in facts.items()]
    context["metatags"] = context.get("metatags", "") + "\n".join(tags)


def _correct(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Let "edit" and "show source" lead to a chapter's text, not to its notebook.

    And give the single page the book's title, which Sphinx leaves out there.
    """
    if context.get("page_source_suffix") == ".ipynb":
        context["page_source_suffix"] = ".md"
    context["docstitle"] = context.get("docstitle") or app.config.html_title


def _as_html(app: Sphinx) -> None:
    """Let the single page show all that pages show: Sphinx drops the rest where any is named."""
    known = app.registry.translation_handlers
    known["singlehtml"] = {**known.get("html", {}), **known.get("singlehtml", {})}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register before the theme reads the suffix, and behind `sphinx.ext.mathjax`."""
    app.add_enumerable_node(_CaptionedTable, "table", html=_AS_FIGURE)
    app.add_transform(_NumberTables)
    app.connect("html-page-context", _correct, priority=100)
    app.connect("builder-inited", _as_html)
    app.connect("html-page-context", _describe)
    app.connect("html-page-context", _without_mathjax, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
