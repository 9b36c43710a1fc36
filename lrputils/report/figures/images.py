"""Figures of attribution maps of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from lrputils.report.figures.style import COLORS, DIVERGING, WIDTH, new_figure


def attribution_grid(
    images: ArrayLike,
    maps: Mapping[str, ArrayLike],
    *,
    title: str,
    shared_scale: Sequence[str] = (),
) -> Figure:
    """Draw a row an image, grey levels from 0 to 1, (images, pixels), and its maps of that shape.

    White is zero, red positive, blue negative; each map runs to its own largest magnitude, those of
    `shared_scale` to a common one.
    """
    images = np.asarray(images)
    side = round(images.shape[1] ** 0.5)
    size = {"rows": len(images), "columns": len(maps) + 1, "squeeze": False}
    figure, axes = new_figure(WIDTH, 0.6 + 0.9 * len(images), title=title, **size)
    for row, image in enumerate(images):
        axes[row, 0].imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
        scores = {name: np.asarray(values)[row] for name, values in maps.items()}
        common = max((np.abs(scores[name]).max() for name in shared_scale), default=0.0)
        for panel, (name, values) in zip(axes[row, 1:], scores.items(), strict=True):
            limit = (common if name in shared_scale else np.abs(values).max()) or 1.0
            panel.imshow(values.reshape(side, side), cmap=DIVERGING, vmin=-limit, vmax=limit)
    for panel in axes.flat:
        panel.set(xticks=[], yticks=[])
        panel.spines[:].set(visible=True, color=COLORS["faint"])
    for panel, name in zip(axes[0], ["image", *maps], strict=True):
        panel.set_title(name, fontsize=10)
    return figure
