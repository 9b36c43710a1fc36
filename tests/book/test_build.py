"""A page has every image of its notebook, or the build fails."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lrputils.book.build import missing_images
from lrputils.book.pairing import write_notebook

IMAGE = {"image/svg+xml": "<svg/>", "text/plain": "<Drawing size 510x330 with 1 Axes>"}
AS_TEXT = {"text/plain": "<Figure size 528x330 with 2 Axes>"}
SHOWN = '<img alt="two trees" src="../_images/0a.svg"/>'
ALT = {"mystnb": {"image": {"alt": "two trees"}}}


def missing(folder, data: dict, page: str) -> list[str]:
    outputs = [new_output("display_data", data)] if data else []
    cell = new_code_cell("figure", outputs=outputs, metadata=ALT)
    write_notebook(new_notebook(cells=[cell]), folder / "source/chapters/01.ipynb")
    (folder / "html/chapters").mkdir(parents=True)
    (folder / "html/chapters/01.html").write_text(page)
    return list(missing_images(folder / "source", folder / "html"))


def test_a_page_with_its_notebook_s_image_is_fine(tmp_path):
    assert missing(tmp_path, IMAGE, f"<p>{SHOWN}</p>") == []


@pytest.mark.parametrize(
    ("data", "page", "problem"),
    [
        (IMAGE, '<img src="logo.svg">', "01: the page shows 0 of its notebook's 1 images"),
        (AS_TEXT, SHOWN, "01: code cell 1 shows <Figure size 528x330 with 2 Axes> instead of"),
        ({}, SHOWN, "01: code cell 1 has a figure's caption or alt text, but shows no image"),
    ],
)
def test_what_is_missing_is_named(tmp_path, data, page, problem):
    (found,) = missing(tmp_path, data, page)
    assert found.startswith(problem)
