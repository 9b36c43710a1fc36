"""A page has every image of its notebook, or the build fails."""

from __future__ import annotations

import subprocess

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lrputils.book.build import build_html, missing_images
from lrputils.book.notebooks import write_notebook

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


def test_the_single_page_lies_where_its_links_lead(tmp_path, monkeypatch):
    def sphinx(*arguments, **options):
        page = tmp_path / "_build/singlehtml/chapters/intro.html"
        page.parent.mkdir(parents=True)
        page.write_text('<img src="_images/a.svg"><a href="chapters/intro.html#trees">')
        return subprocess.CompletedProcess(arguments, 0, "", "")

    monkeypatch.setattr("lrputils.book.build.subprocess.run", sphinx)
    index = build_html(tmp_path, tmp_path, single=True)
    assert index == tmp_path / "_build/singlehtml/index.html"
    assert index.read_text() == '<img src="_images/a.svg"><a href="#trees">'
