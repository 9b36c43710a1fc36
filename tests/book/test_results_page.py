"""A book about a model of the reader's own opens with what the chapters found of it."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from lrputils.book.build import assemble
from lrputils.book.execution import execute
from lrputils.book.layout import Execution, find_book
from lrputils.book.parameters import load_parameters

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
