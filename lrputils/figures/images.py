"""Figures of attribution maps of images, and of how they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from lrputils.figures.style import COLORS, DIVERGING, new_figure


def attribution_grid(
    images: ArrayLike,
    maps: Mapping[str, ArrayLike],
    *,
    title: str,
    shared_scale: Sequence[str] = (),
) -> Figure:
    """Draw a row an image: the image, then its maps in the order given.

    Args:
        images: grey levels from 0 to 1, (images, pixels), square.
        maps: name → (images, pixels). White is zero, red positive, blue negative; each map runs to
            its own largest magnitude.
        title: the figure's message.
        shared_scale: maps that run to the same magnitude, so that their sizes can be compared.
    """
    images = np.asarray(images)
    side = round(images.shape[1] ** 0.5)
    count = len(maps) + 1
    figure, axes = new_figure(
        7.0, 0.55 + 1.2 * len(images), rows=len(images), columns=count, squeeze=False
    )
    for row, image in enumerate(images):
        axes[row, 0].imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
        scores = {name: np.asarray(values)[row] for name, values in maps.items()}
        common = max((np.abs(scores[name]).max() for name in shared_scale), default=0.0)
        for panel, (name, values) in zip(axes[row, 1:], scores.items(), strict=True):
            limit = common if name in shared_scale else np.abs(values).max()
            limit = limit or 1.0
            panel.imshow(values.reshape(side, side), cmap=DIVERGING, vmin=-limit, vmax=limit)
    for panel in axes.flat:
        panel.set_xticks([])
        panel.set_yticks([])
        panel.spines[:].set_visible(True)
        panel.spines[:].set_color(COLORS["faint"])
    for panel, name in zip(axes[0], ["image", *maps], strict=True):
        panel.set_title(name, fontsize=10, fontweight="normal", loc="center")
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure


def sign_flips(rows: pd.DataFrame, pairs: Sequence[str], *, title: str) -> Figure:
    """Draw each image's r after sum-to-one against its r before.

    A point on the rising diagonal kept its sign, one on the falling diagonal was flipped.

    Args:
        rows: of `lrputils.linear_attention.agreement`.
        pairs: the pairs of maps to draw, a panel each.
        title: the figure's message.
    """
    figure, axes = new_figure(7.0, 2.7, columns=len(pairs), squeeze=False, sharex=True, sharey=True)
    for panel, pair in zip(axes[0], pairs, strict=True):
        part = rows[rows["pair"] == pair]
        panel.plot([-1, 1], [-1, 1], color=COLORS["faint"], lw=1, zorder=0)
        panel.plot([-1, 1], [1, -1], color=COLORS["faint"], lw=1, zorder=0)
        for flipped, colour, label in ((False, "cp-lrp", "kept"), (True, "attnlrp", "flipped")):
            some = part[part["flipped"] == flipped]
            panel.scatter(
                some["raw"], some["normalized"], s=7, lw=0, alpha=0.5, color=COLORS[colour]
            )
            if len(some):
                share = f"{label} {len(some) / len(part):.0%}"
                height = 0.02 if flipped else 0.14
                panel.text(0.03, height, share, color=COLORS[colour], transform=panel.transAxes)
        panel.set_title(pair, fontsize=9, fontweight="normal", loc="center")
        panel.set_aspect("equal")
        panel.set_xlabel("raw r")
        panel.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    axes[0, 0].set_ylabel("r after sum-to-one")
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure


def specification_panels(
    table: pd.DataFrame, published: Mapping[str, float], *, title: str
) -> Figure:
    """Draw mean r of every specification, before and after sum-to-one, a panel a pair of maps.

    Args:
        table: of `lrputils.linear_attention.specifications`.
        published: pair → the paper's number, drawn as a line; its pairs decide the panels.
        title: the figure's message.
    """
    names = (table["setting"] + ", " + table["removal"]).drop_duplicates().tolist()
    figure, axes = new_figure(
        7.4,
        1.3 + 0.24 * len(names),
        columns=len(published),
        squeeze=False,
        sharey=True,
        sharex=True,
    )
    for panel, (pair, value) in zip(axes[0], published.items(), strict=True):
        part = table[table["pair"] == pair]
        places = [names.index(f"{row.setting}, {row.removal}") for row in part.itertuples()]
        panel.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
        line = panel.axvline(value, color=COLORS["muted"], lw=1.2, ls="--", zorder=1)
        panel.hlines(places, part["raw"], part["normalized"], color=COLORS["faint"], lw=2)
        raw = panel.scatter(part["raw"], places, s=22, color=COLORS["ink"], zorder=3)
        normalized = panel.scatter(
            part["normalized"], places, s=22, fc="white", ec=COLORS["attnlrp"], lw=1.4, zorder=3
        )
        panel.set_title(pair, fontsize=9, fontweight="normal", loc="center")
        panel.set(xlim=(-1.08, 1.08), xticks=(-1, 0, 1))
    axes[0, 0].set_yticks(range(len(names)), names, fontsize=8.5)
    axes[0, 0].invert_yaxis()
    figure.legend(
        [raw, normalized, line],
        ["raw r", "after sum-to-one", "paper"],
        loc="outside lower center",
        ncols=3,
    )
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    return figure
