"""The page of run statistics, and the version, which stands in three places."""

from __future__ import annotations

from pathlib import Path

import yaml

import lrputils
from lrputils.book.build import run_statistics
from lrputils.book.execution import execute, refresh_twins
from lrputils.book.layout import find_book
from lrputils.book.parameters import load_parameters

ROOT = find_book(Path(__file__)).root


def test_an_executed_chapter_has_its_seconds_memory_and_profile(small_book):
    executed = execute(small_book, load_parameters(small_book))
    head, _, row = run_statistics(executed).splitlines()
    chapter, seconds, memory, profile = (cell.strip() for cell in row.strip("|").split("|"))
    assert "peak memory" in head
    assert (chapter, profile) == ("{doc}`01_short`", "offline")
    assert 0 <= int(seconds) < 300
    assert 20 < float(memory.replace(",", "")) < 10_000
    twins = {"01_short": refresh_twins(small_book, executed)[0]}
    assert run_statistics(twins).startswith("These pages were built from the committed notebooks")


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lrputils.__version__
    assert f"## {lrputils.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"Version {lrputils.__version__}" in (ROOT / "chapters/about.md").read_text()
