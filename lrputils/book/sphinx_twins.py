"""Sphinx extension: "edit" and "show source" lead to a chapter's text, not to its notebook."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx


def _point_at_text(app: Sphinx, page: str, template: str, context: dict[str, Any], tree) -> None:
    if context.get("page_source_suffix") == ".ipynb":
        context["page_source_suffix"] = ".md"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register before the theme, which reads the suffix at the default priority."""
    app.connect("html-page-context", _point_at_text, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
