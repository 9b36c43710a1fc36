"""The single page, the run statistics, and the version, which stands in three places."""

from pathlib import Path
from types import SimpleNamespace

import yaml

import lrputils
from lrputils.book import build
from lrputils.book.execution import execute, refresh_twins
from lrputils.book.layout import find_book
from lrputils.book.parameters import load_parameters

ROOT = find_book(Path(__file__)).root


def test_the_single_page_lies_where_its_links_lead(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").write_text("root: chapters/intro\n")
    page = tmp_path / "_build/singlehtml/chapters/intro.html"
    page.parent.mkdir(parents=True)
    page.write_text('<img src="_images/a.svg"><a href="chapters/intro.html#trees">')
    monkeypatch.setattr(build.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=0))
    index = build.build_html(tmp_path, tmp_path, single=True)
    assert index == tmp_path / "_build/singlehtml/index.html"
    assert index.read_text() == '<img src="_images/a.svg"><a href="#trees">'


def test_an_executed_chapter_has_its_seconds_memory_and_profile(small_book):
    executed = execute(small_book, load_parameters(small_book))
    row = build._run_statistics(executed).splitlines()[-1]
    chapter, seconds, memory, profile = (cell.strip() for cell in row.strip("|").split("|"))
    assert (chapter, profile) == ("{doc}`01_short`", "offline")
    assert 0 <= int(seconds) < 300
    assert 20 < float(memory.replace(",", "")) < 10_000
    twins = {"01_short": refresh_twins(small_book, executed)[0]}
    assert "built from the committed notebooks" in build._run_statistics(twins)


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lrputils.__version__
    assert f"## {lrputils.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"Version {lrputils.__version__}" in (ROOT / "chapters/about.md").read_text()
