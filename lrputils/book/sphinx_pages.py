"""Sphinx extension: a page without a formula of its own does not load MathJax (2 MB).

Sphinx loads it also on a page whose table of contents leads to one with formulas.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _without_mathjax(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    if not app.env.domaindata["math"]["has_equations"].get(page):
        files = context["script_files"]
        files[:] = [file for file in files if "mathjax" not in f"{file} {file.attributes}".lower()]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register behind `sphinx.ext.mathjax`, which adds what is taken away here."""
    app.connect("html-page-context", _without_mathjax, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
