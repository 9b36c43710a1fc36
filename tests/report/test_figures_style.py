import re

import matplotlib.pyplot as plt
import numpy as np

from lrputils.book.layout import find_book
from lrputils.report.figures.style import DIVERGING, WIDTH, new_figure


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


def test_no_type_is_below_nine_pixels_on_a_phone_and_nothing_is_cut():
    figure = drawn()
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(plt.Text) if text.get_text().strip()]
    assert min(text.get_fontsize() for text in texts) * 96 / 72 * 342 / (96 * WIDTH) >= 9
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def on_a_dark_page(colours):
    """Apply the filters invert(1) hue-rotate(180deg) brightness(1.15) to colours in 0..1."""
    turned = np.array([[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]])
    return np.clip(1.15 * np.clip((1 - np.asarray(colours)) @ turned.T, 0, 1), 0, 1)


def test_signs_are_red_and_blue_on_white_and_where_a_dark_page_turns_lightness_round():
    style = (find_book().root / "_static/book.css").read_text()
    assert "invert(1) hue-rotate(180deg) brightness(1.15)" in style
    depth = np.linspace(0.05, 0.5, 10)
    positive, negative = (DIVERGING(0.5 + sign * depth)[:, :3] for sign in (1, -1))
    for red, blue in ((positive, negative), tuple(map(on_a_dark_page, (positive, negative)))):
        assert np.allclose(red[:, 1], red[:, 2], atol=0.01)
        assert (red[:, 0] > red[:, 1]).all()
        assert (np.diff(blue, axis=1) > 0).all()
    red, blue = on_a_dark_page([positive[-1], negative[-1]])
    assert red[0] > 2 * red[1]
    assert blue[2] > 3 * blue[0]
    assert np.allclose(on_a_dark_page(DIVERGING(0.5)[:3]), 0, atol=0.02)
