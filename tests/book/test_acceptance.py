from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.book.acceptance import output_problems


def cell(*outputs, source="1", count=1, **metadata):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata)


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def complaints(*cells) -> str:
    return "\n".join(output_problems(new_notebook(cells=list(cells))))


def test_a_clean_chapter_has_no_problem():
    assert complaints(cell(stream("r = 0.5, 50% of 3/4"))) == ""


PICTURE = {"image/png": "aGk="}
LEFT_AS_TEXT = {"text/plain": "<Figure size 528x330 with 2 Axes>"}
ALT = {"mystnb": {"image": {"alt": "two trees"}}}


def drawing(width: float, scale: float) -> dict[str, str]:
    glyphs = f'<g style="fill: #222" transform="translate(1 2) scale({scale} -{scale})">'
    return {
        "image/svg+xml": f'<svg height="99pt" version="1.1" width="{width}pt">{glyphs}</g></svg>'
    }


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
        (cell(stream("saved in /home/ann/x")), "absolute path"),
        (cell(new_output("display_data", PICTURE)), "without alt text"),
        (cell(regression={"rtol": 0.1}), "reason"),
        (cell(stream("x"), **ALT), "caption or alt text, but shows no image"),
        (cell(mystnb={"figure": {"caption": "c"}}), "caption or alt text, but shows no image"),
        (cell(new_output("display_data", drawing(400, 0.1)), **ALT), "type of 8.6 px on a phone"),
    ],
)
def test_what_must_not_land_is_named(bad, complaint):
    assert complaint in complaints(cell(stream("x")), bad)


def test_a_picture_with_alt_text_is_fine():
    assert complaints(cell(new_output("display_data", PICTURE | LEFT_AS_TEXT), **ALT)) == ""
    assert complaints(cell(new_output("display_data", drawing(360, 0.1)), **ALT)) == ""


def test_at_most_one_output_is_exempt_from_comparison():
    exempt = [cell(stream("x"), tags=["nbval-ignore-output"]) for _ in range(2)]
    assert "exempt" not in complaints(exempt[0])
    assert "2 cells are exempt" in complaints(*exempt)


def test_a_chapter_without_outputs_is_refused():
    assert "nothing to compare" in complaints(cell(source="x = 1"))


def test_a_captioned_table_needs_no_image():
    table = {"mystnb": {"figure": {"name": "tab-r", "caption": "Mean r."}}}
    assert complaints(cell(new_output("display_data", {"text/html": "<table/>"}), **table)) == ""
