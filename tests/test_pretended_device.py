"""Where a GPU is at hand, scores stand on it: tried on a pretended one (`pretended_device.py`).

It has to have a process of its own, since there is no way back. A kernel runs it at its start.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lrputils.book.execution import execute
from lrputils.book.layout import find_book
from lrputils.book.parameters import load_parameters

HERE = Path(__file__).parent
CHAPTERS = [p.stem for p in sorted((HERE.parent / "chapters").glob("*.ipynb"))]
INTRODUCTION = "intro"
START = "from tests.pretended_device import install; install(); import pytest; import sys; "
RUN = "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-W', 'ignore', *sys.argv[1:]]))"


LONG = "test_a_verb[audit]"  # minutes on a device that only pretends; chapter 10 is one, too


@pytest.mark.parametrize(
    "chosen", ["--deselect", pytest.param("", id="audit", marks=pytest.mark.rehearsal)]
)
def test_every_verb_and_method_runs_there(chosen):
    tests = f"{HERE / 'on_pretended_device.py'}"
    which = [chosen, f"on_pretended_device.py::{LONG}", tests] if chosen else [f"{tests}::{LONG}"]
    plain = ["--noconftest", "--rootdir", str(HERE), "-c", os.devnull]
    run = subprocess.run(
        [sys.executable, "-c", START + RUN, *plain, *which],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(name, marks=() if name == INTRODUCTION else pytest.mark.rehearsal)
        for name in CHAPTERS
    ],
)
def test_a_chapter_runs_there(chapter, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", str(HERE / "pretended_device.py"))
    book = find_book()
    execute(book, {chapter: load_parameters(book, "smoke").get(chapter, {})}, out=tmp_path)
