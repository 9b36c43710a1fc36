import numpy as np
import pandas as pd
import pytest

from lrputils.report.figures import images as draw

PAIRS = ["a vs b", "a vs LOO", "b vs LOO"]


def some_table():
    rows = []
    for number, (setting, removal) in enumerate([("x", "zero"), ("x", "black"), ("y", "zero")]):
        for pair in PAIRS:
            r = 0.9 - 0.1 * number
            rows.append((setting, removal, pair, r, r - 0.5, r - 0.7, r - 0.2))
    columns = ["setting", "removal", "pair", "r", "r_normalised"]
    return pd.DataFrame(rows, columns=[*columns, "r_normalised low", "r_normalised high"])


def test_specifications_are_drawn_with_their_intervals():
    figure = draw.specification_panels(some_table(), {PAIRS[1]: 0.1}, title="t")
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "x, zero",
        "x, black",
        "y, zero",
    ]
    connectors, intervals, raw, normalised = panel.collections
    np.testing.assert_allclose(raw.get_offsets()[:, 0], [0.9, 0.8, 0.7])
    np.testing.assert_allclose(normalised.get_offsets()[:, 0], [0.4, 0.3, 0.2])
    ends = np.array([[*segment[:, 0], segment[0, 1]] for segment in intervals.get_segments()])
    np.testing.assert_allclose(ends, [[0.2, 0.7, 0], [0.1, 0.6, 1], [0, 0.5, 2]], atol=1e-12)
    assert len(connectors.get_segments()) == 3
    assert panel.lines[1].get_xdata()[0] == 0.1


def test_sign_flips_are_counted_in_each_panel():
    r = np.array([0.5, 0.6, 0.7, 0.8])
    flipped = np.array([True, False, False, False])
    rows = pd.DataFrame(
        {"pair": PAIRS[0], "r": r, "r_normalised": np.where(flipped, -r, r), "flipped": flipped}
    )
    panel = draw.sign_flips(rows, [PAIRS[0]], title="t").axes[0]
    assert {text.get_text() for text in panel.texts} == {"kept 75%", "flipped 25%"}
    kept, turned = panel.collections
    np.testing.assert_allclose(kept.get_offsets(), np.stack([r[1:], r[1:]], axis=1))
    np.testing.assert_allclose(turned.get_offsets(), [[0.5, -0.5]])


def test_maps_that_share_a_scale_are_drawn_on_one():
    images = np.linspace(0, 1, 8).reshape(2, 4)
    maps = {"big": images * 3, "small": -images, "alone": images * 0}
    figure = draw.attribution_grid(images, maps, title="t", shared_scale=["big", "small"])
    limits = [axis.images[0].get_clim()[1] for axis in figure.axes[5:]]
    assert limits == pytest.approx([3, 3, 1])
    drawn = figure.axes[5].images[0].get_array()
    np.testing.assert_allclose(drawn, maps["big"][1].reshape(2, 2))
