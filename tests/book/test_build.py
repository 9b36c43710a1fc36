"""The single page, the run statistics, one version, and the page of a reader's own results."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import lrputils
from lrputils.book import build
from lrputils.book.build import assemble
from lrputils.book.execution import execute, refresh_twins
from lrputils.book.layout import Execution, find_book
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


def test_a_label_that_moved_to_another_page_is_no_duplicate(tmp_path, monkeypatch):
    (tmp_path / "_toc.yml").write_text("root: intro\n")
    (tmp_path / "_build/html").mkdir(parents=True)
    (tmp_path / "_build/html/index.html").touch()
    kept = tmp_path / "_build/.doctrees"
    kept.mkdir()

    def run(*_, **__):
        said = "WARNING: duplicate definition label 'def-lead'" if kept.is_dir() else ""
        return SimpleNamespace(returncode=int(kept.is_dir()), stdout="", stderr=said)

    monkeypatch.setattr(build.subprocess, "run", run)
    assert build.build_html(tmp_path, tmp_path).is_file()


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


CELL = """

```{code-cell} ipython3
---
mystnb:
  figure:
    name: tab-values
    caption: Values.
---
import pandas as pd

from lrputils.report.display import Answer, show

answer = Answer()
answer.show()
values = pd.DataFrame({"r": [factor / 3, 0.5]}, index=[("a", "b"), ("a", "c")])
own = "" if unused == "x" else f"On *{unused}*: r = {factor / 3:.2f}."
answer.write("**Answer.** It is {third:.2f}.", own, third=factor / 3)
show(values)
```
"""


@pytest.fixture
def book(small_book):
    """The short chapter with a table and an answer, among what a build reads."""
    with (small_book.root / "chapters/01_short.md").open("a") as chapter:
        chapter.write(CELL)
    shutil.copy(find_book(Path(__file__)).root / "_config.yml", small_book.root)
    contents = {"format": "jb-book", "root": "chapters/01_short"}
    (small_book.root / "_toc.yml").write_text(yaml.safe_dump(contents))
    (small_book.root / "profiles/mine.yml").write_text(
        "01_short: {unused: my-model, factor: 1.0}\n"
    )
    return small_book


def test_it_has_each_answer_with_its_chapter_and_every_table_at_full_precision(book, tmp_path):
    executed = execute(book, load_parameters(book, "mine"), Execution("mine"))
    source = tmp_path / "source"
    assemble(book, executed, source, profile="mine")
    contents = yaml.safe_load((source / "_toc.yml").read_text())
    assert contents["root"] == "chapters/your_results"
    assert contents["parts"][0] == {"chapters": [{"file": "chapters/01_short"}]}
    page = (source / "chapters/your_results.md").read_text()
    assert "- {doc}`01_short`: On *my-model*: r = 0.33." in page
    assert "{download}`tab-values <../tables/01_short/tab-values.csv>`" in page
    table = pd.read_csv(source / "tables/01_short/tab-values.csv", index_col=[0, 1])
    assert table.r["a", "b"] == 1 / 3
    banner = yaml.safe_load((source / "_config.yml").read_text())["html"]["announcement"]
    assert "“mine”" in banner
    assert "recorded" in banner
