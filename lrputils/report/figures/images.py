"""Figures of attribution maps of images, and of how they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from lrputils.report.figures.style import COLORS, DIVERGING, WIDTH, new_figure, two_columns


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


def sign_flips(rows: pd.DataFrame, pairs: Sequence[str], *, title: str) -> Figure:
    """Draw each image's r after sum-to-one against its r before, a panel a pair of maps.

    A point on the rising diagonal kept its sign, one on the falling diagonal was flipped.
    """
    figure, panels = two_columns(len(pairs), 2.5, title)
    for panel, pair in zip(panels, pairs, strict=True):
        part = rows[rows["pair"] == pair]
        panel.plot([-1, 1], [[-1, 1], [1, -1]], color=COLORS["faint"], lw=1, zorder=0)
        looks = {"kept": ("blue", 0.12, part[~part.flipped])}
        looks["flipped"] = ("vermilion", 0.02, part[part.flipped])
        for label, (colour, height, some) in looks.items():
            dots = {"s": 9, "lw": 0, "alpha": 0.5, "color": COLORS[colour], "rasterized": True}
            panel.scatter(some["r"], some["r_normalised"], **dots)
            share = f"{label} {len(some) / len(part):.0%}"
            panel.text(0.03, height, share, color=COLORS[colour], transform=panel.transAxes)
        panel.set_title(pair, fontsize=10)
        panel.set(xlim=(-1.06, 1.06), ylim=(-1.06, 1.06), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        panel.set(aspect="equal", xlabel="raw r", ylabel="after sum-to-one")
        panel.label_outer()
    return figure


def specification_panels(
    table: pd.DataFrame, published: Mapping[str, float], *, title: str
) -> Figure:
    """Draw mean r of every specification, before and after sum-to-one, a panel a pair of maps.

    The mean after sum-to-one has its interval, a thin line. `published`: pair → the paper's number,
    a line.
    """
    names = (table["setting"] + ", " + table["removal"]).drop_duplicates().tolist()
    figure, panels = two_columns(len(published), 0.5 + 0.19 * len(names), title)
    for panel, (pair, value) in zip(panels, published.items(), strict=True):
        part = table[table["pair"] == pair]
        places = [names.index(f"{row.setting}, {row.removal}") for row in part.itertuples()]
        panel.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
        panel.hlines(places, part["r"], part["r_normalised"], color=COLORS["faint"], lw=4)
        ends = part["r_normalised low"], part["r_normalised high"]
        panel.hlines(places, *ends, color=COLORS["vermilion"], lw=1.2, zorder=2)
        panel.scatter(part["r"], places, s=24, color=COLORS["ink"], zorder=3, label="raw r")
        ring = {"s": 24, "fc": "white", "ec": COLORS["vermilion"], "lw": 1.5, "zorder": 3}
        label = "after sum-to-one, with interval"
        panel.scatter(part["r_normalised"], places, label=label, **ring)
        line = {"color": COLORS["muted"], "lw": 1.4, "ls": "--", "zorder": 1}
        panel.axvline(value, label="paper", **line)
        panel.set_title(pair, fontsize=10)
        panel.set(xlim=(-1.08, 1.08), xticks=(-1, 0, 1), ylim=(len(names) - 0.4, -0.6))
        panel.set_yticks(range(len(names)), names)
        panel.label_outer()
    figure.legend_below()
    return figure
