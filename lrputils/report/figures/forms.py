"""Figures of correlations by row: attention's other forms, and estimates of patches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_SERIES = (("vermilion", "o"), ("blue", "s"), ("ink", "^"), ("green", "D"))


def agreement_of_forms(
    runs: Mapping[str, pd.DataFrame],
    *,
    title: str = "One function, several AttnLRP maps",
) -> Figure:
    """Draw each form's r with the standard form's map, a series a run.

    `runs` are tables of `lrputils.study.refactorings.summary`, the standard form first; it is left
    out, as its r is 1.
    """
    forms = list(next(iter(runs.values())).index[1:])
    figure, axes = new_figure(WIDTH, 1.6 + 0.36 * len(forms), title=title)
    axes.axvline(1, color=COLORS["faint"], lw=1, zorder=0)
    places = np.arange(len(forms))
    for number, (run, table) in enumerate(runs.items()):
        colour, marker = _SERIES[number % len(_SERIES)]
        part, at = table.loc[forms], places + 0.2 * (number - (len(runs) - 1) / 2)
        axes.hlines(at, part["r low"], part["r high"], color=COLORS[colour], lw=2)
        axes.plot(part.r, at, marker, color=COLORS[colour], ms=5, label=run)
    axes.set_yticks(places, forms)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("Pearson r with the usual form's map")
    figure.legend_below(columns=1)
    return figure


def by_row(
    panels: Mapping[str, Mapping[str, pd.DataFrame]], *, title: str, label: str, zero: bool = True
) -> Figure:
    """Draw estimates row by row: a panel a run, one below the other, in each a colour a series.

    Args:
        panels: run → series → columns `value`, `low`, `high`, all with the same rows.
        title: the figure's message.
        label: of the axis, what is estimated.
        zero: whether to draw a line at 0.
    """
    rows = list(next(iter(next(iter(panels.values())).values())).index)
    size = {"rows": len(panels), "sharex": True, "squeeze": False}
    figure, grid = new_figure(WIDTH, 1.4 + 0.42 * len(rows) * len(panels), title=title, **size)
    for axes, (run, series) in zip(grid.flat, panels.items(), strict=True):
        if zero:
            axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
        for number, (name, table) in enumerate(series.items()):
            colour, marker = _SERIES[number % len(_SERIES)]
            at = np.arange(len(rows)) + 0.18 * (number - (len(series) - 1) / 2)
            axes.hlines(at, table.low, table.high, color=COLORS[colour], lw=2)
            axes.plot(table.value, at, marker, color=COLORS[colour], ms=5, label=name)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_title(run, fontsize=10, loc="left")
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
    grid.flat[-1].set_xlabel(label)
    figure.legend_below()
    return figure
