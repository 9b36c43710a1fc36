"""Figures of values with intervals: a dot each, row by row, a mark and colour a series."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS, NAMES, WIDTH, new_figure

_SHAPES = "osD^"
_COLOURS = ("ink", "orange", "blue", "green")  # of series that are no methods


def dots(
    panels: Mapping[str, pd.DataFrame | Mapping[str, pd.DataFrame]],
    *,
    xlabel: str,
    title: str,
    lines: Mapping[str, float] | None = None,
    line: str = "",
    zero: float | None = None,
    columns: int = 3,
) -> Figure:
    """Draw means with intervals as dots: a panel a run, one below the other.

    Args:
        panels: name → series → columns `value`, `low`, `high` by row; or such a table, indexed by
            (series, row).
        lines: panel → where to draw a dashed line; `line` is what it stands for.
        zero: where to draw a thin line in every panel.
        columns: of the legend.
    """
    tables = {
        name: panel if isinstance(panel, pd.DataFrame) else pd.concat(panel)
        for name, panel in panels.items()
    }
    heights = [table.index.unique(1).size for table in tables.values()]
    size = {"rows": len(tables), "squeeze": False, "sharex": True, "height_ratios": heights}
    height = 1.4 + 0.3 * len(tables) + 0.36 * sum(heights)
    figure, axes = new_figure(WIDTH, height, title=title, **size)
    for axis, (name, table) in zip(axes.flat, tables.items(), strict=True):
        if zero is not None:
            axis.axvline(zero, color=COLORS["faint"], lw=1, zorder=0)
        if lines is not None and name in lines:
            style = {"color": COLORS["ink"], "ls": (0, (3, 2)), "lw": 1.5, "zorder": 0}
            axis.axvline(lines[name], label=line, **style)
        rows, series = list(table.index.unique(1)), list(table.index.unique(0))
        shifts = np.linspace(-0.22, 0.22, len(series)) if len(series) > 1 else [0.0]
        alone = table.value.groupby(level=1).count().reindex(rows).to_numpy() == 1
        for number, (shift, label) in enumerate(zip(shifts, series, strict=True)):
            part = table.loc[label].reindex(rows)
            places = np.arange(len(rows)) + np.where(alone, 0, shift)
            colour = _colour(label, number)
            axis.hlines(places, part.low, part.high, color=colour, lw=2)
            look = {"color": colour, "ms": 5, "label": NAMES.get(label, label)}
            axis.plot(part.value, places, _SHAPES[number % 4], **look)
        axis.set_yticks(range(len(rows)), [NAMES.get(row, row) for row in rows])
        axis.set_title(name, fontsize=10, loc="left")
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(rows) - 0.5, -0.5)
    axes.flat[-1].set_xlabel(xlabel)
    figure.legend_below(columns)
    return figure


def _colour(label: str, number: int) -> str:
    """A method's own colour, or that of the series' number."""
    own = {method.label: method.colour for method in METHODS.values()}.get(label)
    return COLORS[own if own in COLORS else _COLOURS[number % 4]]
