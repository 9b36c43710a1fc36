"""Where the single page of the book lies."""

from __future__ import annotations

import subprocess

from lrputils.book.build import build_html


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
