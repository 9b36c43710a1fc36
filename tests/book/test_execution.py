import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lrputils.book.execution import _code, _fingerprint, _stamp_of, execute
from lrputils.book.layout import BookError, Execution
from lrputils.book.parameters import load_parameters


def outputs(path) -> str:
    return "".join(str(c.outputs) for c in nbformat.read(path, 4).cells if c.cell_type == "code")


def test_text_parameters_code_and_rows_each_decide(small_book):
    chapter, keys = small_book.chapter("1"), []

    def key(given=(), **files):
        for place, text in files.items():
            (small_book.root / place).mkdir(exist_ok=True)
            (small_book.root / place / "file").write_text(text)
        return _fingerprint(chapter, dict(given), _code(small_book))

    assert key() == key()
    keys += [key(), key({"factor": 1.0}), key(experiments="x = 1"), key(results="1")]
    chapter.write_text(chapter.read_text() + "\nmore\n")
    assert len({*keys, key()}) == 5


def test_a_finished_chapter_is_believed_as_it_was_written_only(small_book, capfd):
    given = {"01_short": {}}
    path = execute(small_book, given)["01_short"]
    whole = path.read_text()
    execute(small_book, given)
    assert "01_short: unchanged" in capfd.readouterr().err
    assert "fingerprint" in _stamp_of(path)
    for damaged in (whole.replace("0.5", "0.7"), whole[:-40]):
        path.write_text(damaged)
        assert "fingerprint" not in _stamp_of(path)
    execute(small_book, given)
    assert "0.5" in outputs(path)


def test_two_at_once_and_a_failure_is_told_while_the_others_go_on(small_book, capfd):
    text = small_book.chapter("1")
    slow = "import time\ntime.sleep(4)\n1 / factor"
    for name, cell in (("02_broken", "1 / (factor * 0)"), ("03_last", slow)):
        text.with_name(f"{name}.md").write_text(text.read_text().replace("1 / factor", cell))
    given, how = load_parameters(small_book), Execution(processes=2)
    with pytest.raises(BookError, match="02_broken: code cell 3 failed: ZeroDivision"):
        execute(small_book, given, how)
    kept = {path.stem for path in (small_book.build_folder / "executed/offline").iterdir()}
    assert kept == {"01_short", "03_last", "02_broken.failed"}
    assert "02_broken: code cell 3 failed" in capfd.readouterr().err
    small_book.chapter("2").write_text(text.read_text())
    capfd.readouterr()
    paths = execute(small_book, given, how)
    assert list(paths) == ["01_short", "02_broken", "03_last"]
    assert not [*small_book.build_folder.rglob("*.*.ipynb")]
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


def test_a_figure_is_drawn_whatever_the_user_s_backend_and_kernel_are(small_book, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("JUPYTER_PATH", str(small_book.root))
    broken = small_book.root / "kernels/python3/kernel.json"
    broken.parent.mkdir(parents=True)
    broken.write_text('{"argv": ["false"], "display_name": "x", "language": "python"}')
    chapter = small_book.chapter("1")
    own = FIGURE % "from lrputils.report.figures.style import new_figure\nnew_figure()[0]"
    plain = FIGURE % "import matplotlib.pyplot as plt\nplt.plot([0, 1]);"
    chapter.write_text(chapter.read_text() + own + plain)
    executed = execute(small_book, {chapter.stem: {}})
    cells = nbformat.read(executed[chapter.stem], 4).cells
    kinds = [set(output.data) for cell in cells[-2:] for output in cell.outputs]
    assert ["image/svg+xml" in kinds[0], "image/png" in kinds[-1]] == [True, True]
    assert os.environ["MPLBACKEND"] == "agg"


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (FIGURE % "factor", "01_short: code cell 4 has a figure's caption or alt text, but"),
        (FIGURE % "import os; os._exit(1)", "01_short: the kernel died, often for want of memory"),
    ],
)
def test_a_figure_that_is_not_there_or_a_dead_kernel_fails_the_run(small_book, cell, problem):
    chapter, how = small_book.chapter("1"), Execution(quiet=True)
    output = small_book.build_folder / "executed/offline/01_short.ipynb"
    chapter.write_text(chapter.read_text() + cell)
    with pytest.raises(BookError, match=problem):
        execute(small_book, {chapter.stem: {}}, how)
    assert not output.exists()
    assert output.with_suffix(".failed.ipynb").is_file()


SPHINX = """
import pathlib
import lrputils.book.build as build
cell = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(99)"
pathlib.Path("jupyter_book/cli").mkdir(parents=True)
for path in ("__init__.py", "cli/__init__.py", "cli/main.py"):
    pathlib.Path("jupyter_book", path).write_text(cell if "main" in path else "")
build.build_html(pathlib.Path("source"), pathlib.Path("out"))
"""
KERNEL = """
from lrputils.book.execution import execute
from lrputils.book.layout import Book
import pathlib
if __name__ == "__main__":
    execute(Book(pathlib.Path.cwd()), {"01_short": {}})
"""


@pytest.mark.parametrize("script", [SPHINX, KERNEL])
def test_what_is_killed_leaves_nothing_at_work(small_book, script, monkeypatch):
    monkeypatch.chdir(small_book.root)
    cell = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(99)"
    chapter = small_book.chapter("1")
    chapter.write_text(chapter.read_text().replace("1 / factor", cell))
    Path("run.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([".", *sys.path])}
    run = subprocess.Popen([sys.executable, "run.py"], env=environment)
    note = Path("pid")
    assert wait_for(lambda: note.is_file() and note.read_text())
    run.kill()
    run.wait()
    worker = Path("/proc") / note.read_text() / "cmdline"
    assert wait_for(lambda: not (worker.is_file() and worker.read_bytes()))


def wait_for(true, seconds=30):
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


DIRECTIVES = """(here)=
See {doc}`chapter 2 <02>` {cite}`katz2025`: {glue:text}`found:.2f`, {glue:text}`name`, in
{numref}`tab-x` ({prf:ref}`def-lead`) and nowhere else ({numref}`tab-elsewhere`).

```{prf:definition} A lead
:label: def-lead

The first *leads*.
```

````{solution} ex-one
:class: dropdown

```python
1
```
````"""
PLAIN = """See chapter 2 [katz2025]: 0.12, x, in
Table 1 (Definition “A lead”) and nowhere else.

**Definition (A lead).** The first *leads*.

<details><summary>Solution</summary>

```python
1
```

</details>"""


def test_outside_of_the_book_a_notebook_has_plain_markdown(small_book, tmp_path):
    text = small_book.chapter("1")
    bound = "from lrputils.report.display import bind\nbind(found=(0.123, 0.1, 0.2), name='x')"
    figure = (
        "---\nmystnb:\n  figure:\n    caption: It is {glue:text}`name`.\n    name: tab-x\n---\n"
    )
    cell = f"\n```{{code-cell}} ipython3\n{figure}{bound}\n```\n\n{DIRECTIVES}\n"
    text.write_text(text.read_text() + cell)
    (path,) = execute(small_book, {text.stem: {}}, Execution(quiet=True), tmp_path).values()
    caption, last = nbformat.read(path, 4).cells[-2:]
    assert caption.source == "*Table 1. It is x.*"
    assert last.source == PLAIN
    (kept,) = execute(small_book, {text.stem: {}}, Execution(quiet=True)).values()
    assert nbformat.read(kept, 4).cells[-1].source == DIRECTIVES
