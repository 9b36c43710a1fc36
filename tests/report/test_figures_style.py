from __future__ import annotations

import re

import IPython.display
import matplotlib.pyplot as plt
import pytest

from lrputils.report.figures.style import WIDTH, new_figure


def drawn():
    figure, (left, right) = new_figure(columns=2)
    left.plot([0, 1], label="rising")
    left.set(xlabel="layer", ylabel="share of the relevance")
    left.set_title("one panel", fontsize=10, loc="left")
    right.scatter([0, 1], [1, 0], rasterized=True)
    figure.headline("A message that is longer than one line of a figure which fits a phone's page")
    figure.legend_below()
    return figure


def test_the_same_figure_gives_the_same_svg_without_a_date():
    first, second = drawn().svg(), drawn().svg()
    assert first == second
    assert not re.search(r"<dc:date>|20\d\d-\d\d-\d\d", first)


@pytest.mark.parametrize("backend", ["agg", "svg"])
def test_a_notebook_shows_svg_under_every_backend(monkeypatch, backend):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append(data))
    before = plt.get_backend()
    plt.switch_backend(backend)
    try:
        drawn()._ipython_display_()
    finally:
        plt.switch_backend(before)
    assert [list(data) for data in shown] == [["image/svg+xml", "text/plain"]]
    assert shown[0]["image/svg+xml"].lstrip().startswith("<?xml")


def test_pyplot_does_not_know_a_figure_and_so_cannot_show_it_twice():
    before = plt.get_fignums()
    drawn()
    assert plt.get_fignums() == before


def test_no_type_is_below_nine_pixels_on_a_phone_and_nothing_is_cut():
    figure = drawn()
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(plt.Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) * 96 / 72 * 342 / (96 * WIDTH) >= 9
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height
