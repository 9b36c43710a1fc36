"""Figures of the paths through which relevance arrives: values against queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import COLORS, DIVERGING, WIDTH, band, new_figure

# CP-LRP keeps the values alone, and AttnLRP adds queries and keys: the routes take their colours.
ROUTE_COLORS = {
    "value": COLORS["blue"],
    "query + key": COLORS["vermilion"],
    "residual": COLORS["muted"],
}
_MARKERS = {"value": "o", "query + key": "s", "residual": "^"}


def delivered_to_words(
    tokens: Sequence[str],
    value: np.ndarray,
    query_key: np.ndarray,
    loo: np.ndarray,
    *,
    most: int = 26,
) -> Figure:
    """Draw what two paths of every layer deliver to each token, above the token's LOO score.

    `value` and `query_key` are relevance by path, `(layers, tokens)`, on one colour scale; `loo`,
    `(tokens,)`, has its own. Of a text of more than `most` tokens those with the largest |LOO| are
    drawn, in its order.
    """
    drawn = np.sort(np.argsort(-np.abs(loo), kind="stable")[:most])
    layers = len(value)
    parts = {"through values": value[:, drawn], "through queries and keys": query_key[:, drawn]}
    heights = [layers, layers, max(1.0, layers / 8)]
    size = {"rows": 3, "height_ratios": heights, "sharex": True}
    title = "What values, queries and keys deliver to words"
    figure, axes = new_figure(WIDTH, 2.2 + 0.3 * layers, title=title, **size)
    limit = max(float(np.abs(part).max()) for part in parts.values()) or 1.0
    for place, (name, part) in zip(axes, parts.items(), strict=False):
        image = _matrix(place, part, limit)
        place.set_title(name, fontsize=10, loc="left")
        place.set_ylabel("layer")
        place.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    figure.colorbar(image, ax=axes[:2], shrink=0.6, pad=0.02, label="relevance")
    _matrix(axes[2], loo[None, drawn], float(np.abs(loo[drawn]).max()) or 1.0)
    axes[2].set_yticks([1], ["LOO"])
    axes[2].set_xticks(range(len(drawn)), [tokens[i] for i in drawn], rotation=90)
    return figure


def _matrix(axes: Axes, rows: np.ndarray, limit: float) -> AxesImage:
    """Rows from the bottom up, counted from 1."""
    extent = (-0.5, rows.shape[1] - 0.5, 0.5, len(rows) + 0.5)
    look = {"cmap": DIVERGING, "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return axes.imshow(rows, origin="lower", aspect="auto", extent=extent, **look)


def routes_by_layer(share: pd.DataFrame, r: pd.DataFrame) -> Figure:
    """Draw each route's share of the relevance and its correlation with LOO, layer by layer.

    Both by (layer, route), layers from 1, columns `value`, `low`, `high`; rows of `r` that are
    absent or NaN are left out.
    """
    title = "What comes in by each route; does LOO agree?"
    figure, (above, below) = new_figure(WIDTH, 5.4, title=title, rows=2, sharex=True)
    for axes, summary in ((above, share), (below, r)):
        for route, part in summary.groupby(level="route", sort=False):
            look = {"color": ROUTE_COLORS[route], "marker": _MARKERS[route], "ms": 5}
            band(axes, part.droplevel("route").dropna(), label=route, **look)
    above.set(ylabel="share of |relevance|", ylim=(0, 1))
    below.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
    below.set(xlabel="layer", ylabel="Pearson r with LOO", ylim=(-1.05, 1.05))
    below.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    figure.legend_below(columns=3)
    return figure
