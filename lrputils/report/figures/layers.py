"""Figures over a model's layers: the ablations of AttnLRP, and measurements layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import COLORS, NAMES, band, new_figure, two_columns, width
from lrputils.runs import frame

_SERIES = (("ink", "o"), ("blue", "s"), ("vermilion", "^"), ("green", "D"))
_MODELS = {frame.MINILM: "orange", frame.MPNET6: "sky", frame.MPNET: "blue"}
# family → the panel's heading, and where a layer k of L stands between 0, below all, and 1.
_FAMILIES: dict[str, tuple[str, Callable[[pd.Index, int], pd.Index]]] = {
    "front": ("CP's rule in all layers below", lambda k, layers: k / layers),
    "back": ("in all layers above", lambda k, layers: (k - 1) / layers),
    "single": ("in one layer alone", lambda k, layers: (k - 0.5) / layers),
}


def ablations(
    panels: Mapping[str, pd.DataFrame], published: Sequence[pd.Series], *, title: str
) -> Figure:
    """Draw the layer ablations of several models against the share of the depth.

    A row of panels a family, a column each of `panels`: what is measured → columns `value`, `low`,
    `high` by model, family and layer. `published`: for each column the paper's means by family and
    layer, dashed.
    """
    size = {"rows": 3, "columns": len(panels), "squeeze": False, "sharex": True, "sharey": "col"}
    figure, grid = new_figure(width(len(panels)), 7.2, title=title, **size)
    for column, (name, table), printed in zip(grid.T, panels.items(), published, strict=True):
        for axes, (family, (heading, place)) in zip(column, _FAMILIES.items(), strict=True):
            for model, part in table.groupby(level=0, sort=False):
                own = part.loc[model].loc[family]
                own = own.set_axis(place(own.index, max(own.index)))
                look = {"color": COLORS[_MODELS.get(model, "ink")], "label": model}
                band(axes, own, ls="-", marker="o", ms=3.5, lw=1.6, **look)
            theirs = printed[family]
            look = {"color": COLORS["muted"], "lw": 1.8, "zorder": 1, "label": "the paper"}
            axes.plot(place(theirs.index, max(theirs.index)), theirs, "--", **look)
            axes.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
            axes.set_title(heading, fontsize=10, loc="left")
        column[1].set_ylabel(name)
        column[-1].set_xlabel("share of the depth")
    figure.legend_below()
    return figure


def by_layer(
    panels: Mapping[str, pd.DataFrame | Mapping[str, pd.DataFrame]],
    *,
    title: str,
    label: str = "",
    zero: bool = False,
) -> Figure:
    """Draw one measurement layer by layer: a panel a run, in two columns, on one scale.

    `panels`: run → columns `value`, `low`, `high` by layer (from 1); or, for several series in a
    panel, series → such a table. If `zero` is the question, a line is drawn there, and a mean whose
    interval reaches it is hollow.
    """
    figure, grid = two_columns(len(panels), 1.9, title, sharey=True)
    for axes, (run, series) in zip(grid, panels.items(), strict=True):
        several = series if isinstance(series, Mapping) else {"": series}
        for place, (name, table) in enumerate(several.items()):
            shift = 0.14 * (place - (len(several) - 1) / 2)
            _draw_series(axes, table, name, _SERIES[place % 4], shift, zero)
        if zero:
            axes.axhline(0, color=COLORS["muted"], lw=1, zorder=0)
        _layer_axis(axes, run, max(table.index))
        axes.set_xlabel("layer")
    for axes in grid[::2]:
        axes.set_ylabel(label)
    figure.legend_below()
    return figure


def _draw_series(
    axes: Axes, table: pd.DataFrame, label: str, look: tuple[str, str], shift: float, zero: bool
) -> None:
    colour, marker = COLORS[look[0]], look[1]
    places = table.index + shift
    axes.vlines(places, table.low, table.high, color=colour, lw=2, alpha=0.6)
    axes.plot(places, table.value, "-", color=colour, lw=1, alpha=0.5)
    clear = (table.low > 0) | (table.high < 0) | (not zero)
    faces = np.where(clear, colour, "white")
    dots = {"s": 24, "marker": marker, "zorder": 3, "label": label or None}
    axes.scatter(places, table.value, c=faces, edgecolors=colour, **dots)


def _layer_axis(axes: Axes, title: str, layers: int) -> None:
    axes.set_title(NAMES.get(title, title), fontsize=10, loc="left")
    axes.set_xlim(0.5, layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
