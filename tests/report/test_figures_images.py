import numpy as np
import pytest

from lrputils.report.figures import images as draw


def test_maps_that_share_a_scale_are_drawn_on_one():
    images = np.linspace(0, 1, 8).reshape(2, 4)
    maps = {"big": images * 3, "small": -images, "alone": images * 0}
    figure = draw.attribution_grid(images, maps, title="t", shared_scale=["big", "small"])
    limits = [axis.images[0].get_clim()[1] for axis in figure.axes[5:]]
    assert limits == pytest.approx([3, 3, 1])
    drawn = figure.axes[5].images[0].get_array()
    np.testing.assert_allclose(drawn, maps["big"][1].reshape(2, 2))
