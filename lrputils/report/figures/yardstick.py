"""Figures of chapter 8: values with intervals, rows by series, a panel each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_SHAPES = "osD^"
_COLOURS = ("ink", "orange", "blue", "green")  # of series that are no methods


def dots(
    panels: Mapping[str, pd.DataFrame],
    *,
    xlabel: str,
    title: str,
    lines: Mapping[str, float] | None = None,
    line: str = "",
) -> Figure:
    """Draw means with intervals as dots, a row a method, a mark a series.

    Args:
        panels: name → a table with columns `value`, `low`, `high`, indexed by (series, row).
        xlabel: what the values are.
        title: the figure's message.
        lines: panel → where to draw a dashed line.
        line: what it stands for.
    """
    heights = [table.index.unique(1).size for table in panels.values()]
    size = {"rows": len(panels), "squeeze": False, "sharex": True, "height_ratios": heights}
    height = 1.4 + 0.3 * len(panels) + 0.36 * sum(heights)
    figure, axes = new_figure(WIDTH, height, title=title, **size)
    for axis, (name, table) in zip(axes.flat, panels.items(), strict=True):
        if lines is not None and name in lines:
            style = {"color": COLORS["vermilion"], "ls": (0, (3, 2)), "lw": 1.5, "zorder": 0}
            axis.axvline(lines[name], label=line, **style)
        rows, series = list(table.index.unique(1)), list(table.index.unique(0))
        shifts = np.linspace(-0.22, 0.22, len(series)) if len(series) > 1 else [0.0]
        for number, (shift, label) in enumerate(zip(shifts, series, strict=True)):
            part = table.loc[label].reindex(rows)
            places, colour = np.arange(len(rows)) + shift, _colour(label, number)
            axis.hlines(places, part.low, part.high, color=colour, lw=2)
            axis.plot(part.value, places, _SHAPES[number], color=colour, ms=5, label=label)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_title(name, fontsize=10, loc="left")
        axis.tick_params(axis="y", length=0)
        axis.invert_yaxis()
    axes.flat[-1].set_xlabel(xlabel)
    figure.legend_below(columns=3)
    return figure


def _colour(label: str, number: int) -> str:
    """A method's own colour, or that of the series' number."""
    own = {method.label: method.colour for method in METHODS.values()}.get(label)
    return COLORS[own if own in COLORS else _COLOURS[number]]
