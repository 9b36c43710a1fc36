from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from lrputils.report.figures.paths import ROUTE_COLORS, delivered_to_words, routes_by_layer
from lrputils.study.routes import ROUTES

TOKENS = ["[CLS]", "not", "a", "dull", "film", "[SEP]"]
VALUE = np.arange(18, dtype=float).reshape(3, 6) - 5
QUERY_KEY = -2 * VALUE
LOO = np.array([0.1, -0.9, 0.0, 0.8, 0.3, -0.2])


def matrices(figure):
    return [axes.images[0] for axes in figure.axes if axes.images]


def test_both_paths_share_a_scale_and_loo_has_its_own():
    value, query_key, loo = matrices(delivered_to_words(TOKENS, VALUE, QUERY_KEY, LOO))
    assert np.array_equal(value.get_array(), VALUE)
    assert np.array_equal(query_key.get_array(), QUERY_KEY)
    assert np.array_equal(loo.get_array(), LOO[None])
    assert value.get_clim() == query_key.get_clim() == (-24, 24)
    assert loo.get_clim() == (-0.9, 0.9)


def test_layers_count_from_one_and_go_up():
    image = matrices(delivered_to_words(TOKENS, VALUE, QUERY_KEY, LOO))[0]
    assert image.origin == "lower"
    assert image.get_extent() == pytest.approx([-0.5, 5.5, 0.5, 3.5])


def test_of_a_long_text_the_most_influential_tokens_are_drawn_in_their_order():
    figure = delivered_to_words(TOKENS, VALUE, QUERY_KEY, LOO, most=3)
    value, _, loo = matrices(figure)
    assert np.array_equal(value.get_array(), VALUE[:, [1, 3, 4]])
    assert np.array_equal(loo.get_array(), LOO[None, [1, 3, 4]])
    bottom = next(axes for axes in figure.axes if axes.images and axes.images[0] is loo)
    assert [tick.get_text() for tick in bottom.get_xticklabels()] == ["not", "dull", "film"]


def test_a_map_of_zeros_can_be_drawn():
    nothing = np.zeros_like(VALUE)
    assert matrices(delivered_to_words(TOKENS, nothing, nothing, 0 * LOO))[0].get_clim() == (-1, 1)


def summary(routes, layers=3):
    index = pd.MultiIndex.from_product([range(1, layers + 1), routes], names=["layer", "route"])
    mean = np.linspace(0.1, 0.6, len(index))
    return pd.DataFrame({"value": mean, "low": mean - 0.1, "high": mean + 0.1}, index=index)


def test_each_route_is_a_line_over_the_layers_in_both_panels():
    share, r = summary(ROUTES), summary(["value", "residual"])
    figure = routes_by_layer(share, r)
    above, below = figure.axes
    drawn = {line.get_label(): line for line in above.lines}
    assert list(drawn) == list(ROUTES)
    for route, line in drawn.items():
        assert line.get_color() == ROUTE_COLORS[route]
        assert np.array_equal(line.get_xdata(), [1, 2, 3])
        assert np.array_equal(line.get_ydata(), share.xs(route, level="route")["value"])
    assert {"value", "residual"} == {x.get_label() for x in below.lines if len(x.get_xdata()) == 3}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(ROUTES)


def test_nothing_is_left_open():
    delivered_to_words(TOKENS, VALUE, QUERY_KEY, LOO)
    routes_by_layer(summary(ROUTES), summary(ROUTES))
    assert plt.get_fignums() == []
