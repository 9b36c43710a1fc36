import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from lrputils.book.notebooks import read_text, write_notebook
from lrputils.report.figures.style import new_figure
from tests.book.acceptance import differences, legend_colours, output_problems


def cell(*outputs, source="1", count=1, **metadata):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata)


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def shows(**data):
    return new_output("display_data", {kind.replace("_", "/"): it for kind, it in data.items()})


def drawing(width: float) -> dict:
    glyphs = '<g style="fill: #222" transform="translate(1 2) scale(0.1 -0.1)">'
    svg = f'<svg height="99pt" version="1.1" width="{width}pt">{glyphs}</g></svg>'
    return new_output("display_data", {"image/svg+xml": svg})


ALT = {"mystnb": {"image": {"alt": "two trees"}}}
CLEAN = [
    cell(stream("r = 0.5, 50% of 3/4")),
    cell(shows(image_png="aGk="), **ALT),
    cell(drawing(360), **ALT),
    cell(shows(text_html="<table/>"), mystnb={"figure": {"name": "tab-r", "caption": "r."}}),
    cell(stream("x"), tags=["nbval-ignore-output"]),
]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (cell(source="x = 1", count=None), "was not executed"),
        (cell(new_output("error", ename="ValueError")), "raised ValueError"),
        (cell(stream("careful", "stderr")), "stderr"),
        (cell(stream("50%|█████     | 5/10 [00:01<00:01]")), "progress bar"),
        (cell(stream("12.5it/s")), "rate"),
        (cell(tags=["injected-parameters"]), "injected"),
        (cell(tags=["raises-exception"]), "expected to raise"),
        (cell(stream("x"), tags=["nbval-ignore-output"]), "2 cells are exempt"),
        (cell(stream("saved in /home/ann/x")), "absolute path"),
        (cell(shows(image_png="aGk=")), "without alt text"),
        (cell(regression={"rtol": 0.1}), "reason"),
        (cell(stream("x"), **ALT), "caption or alt text, but shows no image"),
        (cell(drawing(400), **ALT), "type of 8.6 px on a phone"),
    ],
)
def test_what_must_not_land_is_named(bad, complaint):
    (found,) = output_problems(new_notebook(cells=[*CLEAN, bad]))
    assert complaint in found


def test_what_is_clean_or_empty():
    assert list(output_problems(new_notebook(cells=CLEAN))) == []
    assert "nothing to compare" in next(output_problems(new_notebook(cells=[cell()])))


def test_a_legend_is_read():
    figure, panel = new_figure()
    panel.plot([1, 2], "o", color="#123456", label="some dots")
    figure.legend_below()
    assert list(legend_colours(figure.svg())) == [("some dots", {"#123456"})]


def test_twins_differ_in_what_was_edited(small_book):
    chapter = small_book.chapter("1")
    twin = chapter.with_suffix(".ipynb")
    write_notebook(read_text(chapter), twin)
    assert list(differences(chapter, twin)) == []
    chapter.write_text(chapter.read_text().replace("1 / factor", "2 / factor"))
    assert list(differences(chapter, twin)) == ["cell 4 of 01_short.ipynb differs in source"]
