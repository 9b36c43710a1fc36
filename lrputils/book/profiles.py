"""Profiles: named sets of parameters for the whole book, in `profiles/<name>.yml`.

A profile is a mapping. `_all:` holds parameters for every chapter that declares them; a section
named after a chapter holds that chapter's own and wins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lrputils.book.layout import DEFAULT, Book, BookError
from lrputils.book.pairing import read_text
from lrputils.book.parameters import checked, declared


def _read(book: Book, name: str) -> dict[str, dict[str, Any]]:
    path = Path(name) if name.endswith((".yml", ".yaml")) else book.root / f"profiles/{name}.yml"
    if not path.is_file():
        known = ", ".join(book.profiles())
        raise BookError(f"no profile {name!r}; the profiles are: {known}, or the path of a .yml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise BookError(f"profile {path.name} is not YAML: {error}") from None
    sections = content.values() if isinstance(content, dict) else [None]
    if not all(isinstance(section, dict | None) for section in sections) or content == [None]:
        raise BookError(f"profile {path.name}: every section must be a mapping name: value")
    if not isinstance(content, dict):
        raise BookError(f"profile {path.name} must be a mapping of chapters to parameters")
    return {section: values or {} for section, values in content.items()}


def load_profile(book: Book, name: str = DEFAULT) -> dict[str, dict[str, Any]]:
    """Return each chapter's parameters under the profile, without those that equal the default.

    Args:
        book: the book whose chapters are to be parameterised.
        name: a profile's name, or the path of a YAML file.

    Raises:
        BookError: an unknown profile, chapter or parameter, a wrong type, or a parameter that its
            chapter never reads.
    """
    sections = _read(book, name)
    for_all = sections.pop("_all", {})
    notebooks = {chapter.name: read_text(chapter.text) for chapter in book.chapters()}
    for section in sections:
        if section not in notebooks:
            known = ", ".join(notebooks)
            raise BookError(f"profile {name}: no chapter {section!r}; the chapters are: {known}")
    resolved, used = {}, set()
    for chapter, notebook in notebooks.items():
        parameters = declared(notebook, chapter)
        shared = {key: value for key, value in for_all.items() if key in parameters}
        used |= shared.keys()
        values = checked(notebook, chapter, {**shared, **sections.get(chapter, {})})
        resolved[chapter] = {k: v for k, v in values.items() if v != parameters[k].default}
    if unknown := sorted(for_all.keys() - used):
        raise BookError(f"profile {name}: no chapter has the _all parameter(s) {unknown}")
    return resolved
