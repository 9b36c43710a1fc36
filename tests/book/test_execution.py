from __future__ import annotations

import os

import pytest

from lrputils.book.execution import (
    ChapterFailed,
    execute_profile,
    fingerprint,
    run_chapter,
)
from lrputils.book.notebooks import images, read_notebook, write_notebook
from lrputils.book.parameters import load_profile


def outputs(path) -> str:
    return "".join(str(c.outputs) for c in read_notebook(path).cells if c.cell_type == "code")


def break_chapter(chapter) -> None:
    chapter.text.write_text(chapter.text.read_text().replace("1 / factor", "1 / (factor * 0)"))


@pytest.fixture
def executed_once(small_book):
    parameters = load_profile(small_book)
    paths = execute_profile(small_book, small_book.chapters(), parameters, progress=False)
    return small_book, parameters, paths["01_short"]


def test_only_what_changed_is_executed_again(executed_once):
    book, parameters, path = executed_once
    before = path.stat().st_mtime_ns
    execute_profile(book, book.chapters(), parameters, progress=False)
    assert path.stat().st_mtime_ns == before
    execute_profile(book, book.chapters(), {"01_short": {"factor": 8.0}}, progress=False)
    assert path.stat().st_mtime_ns > before
    assert "0.125" in outputs(path)


def test_text_parameters_and_package_each_decide(small_book):
    chapter = small_book.chapter("1")
    keys = {
        fingerprint(chapter, {}, "p"),
        fingerprint(chapter, {"factor": 1.0}, "p"),
        fingerprint(chapter, {}, "q"),
    }
    chapter.text.write_text(chapter.text.read_text() + "\nmore\n")
    keys.add(fingerprint(chapter, {}, "p"))
    assert len(keys) == 4


def test_a_raising_chapter_is_named_and_overwrites_nothing(small_book, tmp_path):
    chapter, failed = small_book.chapter("1"), tmp_path / "failed.ipynb"
    write_notebook(read_notebook_of("kept"), chapter.notebook)
    kept = chapter.notebook.read_bytes()
    break_chapter(chapter)
    with pytest.raises(ChapterFailed) as caught:
        run_chapter(chapter, {}, chapter.notebook, failed=failed, progress=False)
    said = str(caught.value)
    assert said.startswith("01_short: code cell 3 failed: ZeroDivisionError: float division")
    assert said.endswith(f"the run as far as it got: {failed}")
    assert "1 / (factor * 0)" in caught.value.details
    assert chapter.notebook.read_bytes() == kept
    assert failed.is_file()
    chapter.text.write_text(chapter.text.read_text().replace("(factor * 0)", "factor"))
    run_chapter(chapter, {}, chapter.notebook, failed=failed, progress=False)
    assert not failed.exists()


def test_two_at_once_and_a_failure_ends_the_rest(small_book, capfd):
    text = small_book.chapter("1").text
    slow = "import time\ntime.sleep(4)\n1 / factor"
    for name, cell in (("02_broken", "1 / (factor * 0)"), ("03_last", slow)):
        text.with_name(f"{name}.md").write_text(text.read_text().replace("1 / factor", cell))
    chapters, given = small_book.chapters(), load_profile(small_book)
    with pytest.raises(
        ChapterFailed, match="02_broken: code cell 3 failed: ZeroDivision"
    ) as caught:
        execute_profile(small_book, chapters, given, processes=2)
    assert "1 / (factor * 0)" in caught.value.details
    kept = {path.stem for path in (small_book.build_folder / "executed/offline").iterdir()}
    assert kept == {"03_last"}  # which had begun; what had not was left
    chapters[1].text.write_text(text.read_text())
    capfd.readouterr()
    paths = execute_profile(small_book, chapters, given, processes=2)
    assert list(paths) == ["01_short", "02_broken", "03_last"]
    assert all("0.5" in outputs(path) for path in paths.values())
    said = capfd.readouterr().err
    assert "03_last: unchanged" in said
    assert "01_short: " in said


FIGURE = """
```{code-cell} ipython3
---
mystnb:
  image:
    alt: a line from zero to one
---
%s
```
"""


def test_a_figure_is_drawn_whatever_the_user_s_backend_is(small_book, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    chapter = small_book.chapter("1")
    own = FIGURE % "from lrputils.report.figures.style import new_figure\nnew_figure()[0]"
    plain = FIGURE % "import matplotlib.pyplot as plt\nplt.plot([0, 1]);"
    chapter.text.write_text(chapter.text.read_text() + own + plain)
    run_chapter(chapter, {}, chapter.notebook, failed=tmp_path / "failed.ipynb", progress=False)
    cells = read_notebook(chapter.notebook).cells
    kinds = [images(cell) for cell in cells if cell.cell_type == "code"]
    assert kinds[-2:] == [["image/svg+xml"], ["image/png"]]
    assert os.environ["MPLBACKEND"] == "agg"


def test_a_figure_that_is_not_there_fails_the_run(small_book, tmp_path):
    chapter, failed = small_book.chapter("1"), tmp_path / "failed.ipynb"
    chapter.text.write_text(chapter.text.read_text() + FIGURE % "factor")
    with pytest.raises(ChapterFailed, match="code cell 4 has a figure's caption or alt text, but"):
        run_chapter(chapter, {}, chapter.notebook, failed=failed, progress=False)
    assert not chapter.notebook.exists()
    assert failed.is_file()


def test_a_kernel_that_dies_is_said_to_have_died(small_book, tmp_path):
    chapter, failed = small_book.chapter("1"), tmp_path / "failed.ipynb"
    chapter.text.write_text(
        chapter.text.read_text().replace("1 / factor", "import os; os._exit(factor)")
    )
    with pytest.raises(ChapterFailed, match="01_short: the kernel died, often for want of memory"):
        run_chapter(chapter, {"factor": 1}, tmp_path / "out.ipynb", failed=failed, progress=False)
    assert failed.is_file()


def read_notebook_of(source: str):
    from nbformat.v4 import new_code_cell, new_notebook

    return new_notebook(cells=[new_code_cell(source)])
