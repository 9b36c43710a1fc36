"""A page has every image of its notebook, or the build fails."""

from __future__ import annotations

import subprocess

from lrputils.book.build import build_html

IMAGE = {"image/svg+xml": "<svg/>", "text/plain": "<Drawing size 510x330 with 1 Axes>"}
AS_TEXT = {"text/plain": "<Figure size 528x330 with 2 Axes>"}
SHOWN = '<img alt="two trees" src="../_images/0a.svg"/>'
ALT = {"mystnb": {"image": {"alt": "two trees"}}}


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
