"""Sphinx extension: pages without needless MathJax, and links that lead to a chapter's text."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _without_mathjax(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Leave out MathJax (2 MB) where the page has no formula of its own.

    Sphinx loads it also on a page whose table of contents leads to one with formulas.
    """
    if not app.env.domaindata["math"]["has_equations"].get(page):
        files = context["script_files"]
        files[:] = [file for file in files if "mathjax" not in f"{file} {file.attributes}".lower()]


def _point_at_text(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    """Let "edit" and "show source" lead to a chapter's text, not to its notebook."""
    if context.get("page_source_suffix") == ".ipynb":
        context["page_source_suffix"] = ".md"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register before the theme reads the suffix, and behind `sphinx.ext.mathjax`."""
    app.connect("html-page-context", _point_at_text, priority=100)
    app.connect("html-page-context", _without_mathjax, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
