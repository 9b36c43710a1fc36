"""A sentence with a direction turns red when the recorded rows are turned round."""

import sys
from dataclasses import replace

import pytest
from IPython.core.interactiveshell import InteractiveShell

from experiments import frame
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from lrputils.runs import results


def swapped(rows, other="cp-lrp"):
    """AttnLRP's rows under another method's name, and the other way round."""
    names = {"attnlrp": other, other: "attnlrp"}
    return rows.assign(method=rows.method.replace(names)) if "method" in rows else rows


def reversed_layers(rows):
    """What was measured in the first layer stands in the last."""
    if "linearisation" not in rows:
        return rows
    return rows.assign(layer=rows.groupby("model").layer.transform("max") + 1 - rows.layer)


def run(chapter):
    """Run a chapter's cells one after the other, and show nothing."""
    shell = InteractiveShell.instance()
    shell.reset()
    shell.display_formatter.active_types = []
    for cell in read_text(find_book().chapter(chapter)).cells:
        if cell.cell_type == "code":
            shell.run_cell(cell.source).raise_error()


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    ("chapter", "turn"),
    [
        ("intro", swapped),
        ("03_sst", swapped),
        ("04_imdb", swapped),
        ("05_layer_ablation", swapped),
        ("05_layer_ablation", reversed_layers),
        ("06_specifications", swapped),
        ("07_remedy", swapped),
        ("08_yardstick", swapped),
        ("10_audit", swapped),
    ],
)
def test_a_chapter_notices_that_rows_were_turned_round(chapter, turn, monkeypatch):
    read_rows, load = frame.read_rows, results.load  # `read_maps` calls the first, too
    monkeypatch.setattr(frame, "read_rows", lambda *a, **k: turn(read_rows(*a, **k)))
    monkeypatch.setattr(results, "load", lambda *a: replace(run := load(*a), rows=turn(run.rows)))
    monkeypatch.setenv("MPLBACKEND", "agg")
    # The shell stands in its place, from where no process could be started any more.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(AssertionError):
        run(chapter)
