"""Sphinx extension: pages describe themselves and link to the text; tables have numbers."""

from __future__ import annotations

import html
import re
import textwrap
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class CaptionedTable(nodes.figure):
    """A table that a cell shows, numbered and captioned as a figure is."""


class NumberTables(SphinxTransform):
    """Count as a table what a cell captions under a name `tab-…`; MyST-NB knows figures alone."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Put a table in the place of each such figure."""
        for figure in [*self.document.findall(nodes.figure)]:
            if any(name.startswith("tab-") for name in figure["names"]):
                table = CaptionedTable("", *figure.children, **figure.attributes)
                figure.replace_self(table)
                self.document.ids |= dict.fromkeys(table["ids"], table)


def _visit(writer: Any, node: nodes.Node) -> None:
    writer.visit_figure(node)


def _depart(writer: Any, node: nodes.Node) -> None:
    writer.depart_figure(node)


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


def _point_at_text(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Let "edit" and "show source" lead to a chapter's text, not to its notebook."""
    if context.get("page_source_suffix") == ".ipynb":
        context["page_source_suffix"] = ".md"


def _name_book(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Give the single page the book's title, which Sphinx leaves out there."""
    context["docstitle"] = context.get("docstitle") or app.config.html_title


def _as_html(app: Sphinx) -> None:
    """Let the single page show all that pages show: Sphinx drops the rest where any is named."""
    known = app.registry.translation_handlers
    known["singlehtml"] = {**known.get("html", {}), **known.get("singlehtml", {})}


def setup(app: Sphinx) -> dict[str, bool]:
    """Register before the theme reads the suffix, and behind `sphinx.ext.mathjax`."""
    app.add_enumerable_node(CaptionedTable, "table", html=(_visit, _depart))
    app.add_transform(NumberTables)
    app.connect("html-page-context", _point_at_text, priority=100)
    app.connect("html-page-context", _name_book, priority=100)
    app.connect("builder-inited", _as_html)
    app.connect("html-page-context", _describe)
    app.connect("html-page-context", _without_mathjax, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
