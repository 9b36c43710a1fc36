"""Figures over a model's layers: the ablations of AttnLRP, and measurements layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import COLORS, WIDTH, Drawing, new_figure
from lrputils.study.softmax_errors.ablation import RAW, SUM_TO_ONE, layer_count

_FAMILIES = {
    "front": "front: layers 1 to k",
    "back": "back: layers k to {layers}",
    "single": "single: layer k alone",
}
_COLORS = {RAW: COLORS["ink"], SUM_TO_ONE: COLORS["blue"]}
_SERIES = (
    (COLORS["ink"], "o"),
    (COLORS["blue"], "s"),
    (COLORS["vermilion"], "^"),
    (COLORS["green"], "D"),
)


def ablations(
    runs: Mapping[str, Mapping[str, pd.DataFrame]],
    published: Mapping[str, pd.Series] | None = None,
    *,
    title: str = "CP's rule in the first, the last, or one layer",
) -> Figure:
    """Draw the ablations of several runs: a column a run, a row a family.

    Args:
        runs: run → convention (`RAW`, `SUM_TO_ONE`) → columns `value`, `low`, `high` by family and
            layer, with ("attnlrp", 0) among the rows where there is one: a dotted line.
        published: run → the paper's means by family and layer, dashed. Where the model has another
            number of layers, they are drawn at the same relative depth.
        title: the figure's message.
    """
    figure, grid = new_figure(
        _width(len(runs)), 7.0, rows=3, columns=len(runs), sharey=True, squeeze=False
    )
    for column, (run, summaries) in enumerate(runs.items()):
        layers = layer_count(next(iter(summaries.values())))
        for axes, family in zip(grid[:, column], _FAMILIES, strict=True):
            for convention, summary in summaries.items():
                _draw_family(axes, family, convention, summary, layers)
            if published and run in published:
                _draw_published(axes, family, published[run], layers)
            axes.set_title(_FAMILIES[family].format(layers=layers), fontsize=10, loc="left")
            axes.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
            _layer_axis(axes, layers)
        first = grid[0, column]
        first.set_title(f"{run}\n{first.get_title(loc='left')}", fontsize=10, loc="left")
        grid[-1, column].set_xlabel("layer k")
    for axes in grid[:, 0]:
        axes.set_ylabel("r with LOO")
    _legend(figure)
    figure.headline(title)
    return figure


def _draw_family(
    axes: Axes, family: str, convention: str, summary: pd.DataFrame, layers: int
) -> None:
    places = np.arange(1, layers + 1)
    rows = summary.loc[family]
    colour = _COLORS.get(convention, COLORS["muted"])
    axes.fill_between(places, rows.low, rows.high, color=colour, alpha=0.18, lw=0)
    axes.plot(places, rows.value, "o-", color=colour, ms=3.5, lw=1.6, label=convention)
    if ("attnlrp", 0) in summary.index:
        axes.axhline(summary.value["attnlrp", 0], color=colour, lw=1, ls=":", zorder=1)


def _draw_published(axes: Axes, family: str, published: pd.Series, layers: int) -> None:
    theirs = layer_count(published)
    numbers = np.arange(1, theirs + 1)
    places = {
        "front": numbers * layers / theirs,
        "back": layers + 1 - (theirs + 1 - numbers) * layers / theirs,
        "single": (numbers - 0.5) * layers / theirs + 0.5,
    }[family]
    axes.plot(
        places, published[family], "--", color=COLORS["muted"], lw=1.8, zorder=1, label="the paper"
    )


def by_layer(
    runs: Mapping[str, Mapping[str, pd.DataFrame | Mapping[str, pd.DataFrame]]],
    *,
    title: str,
    zero: Sequence[str] = (),
) -> Figure:
    """Draw measurements layer by layer: up to two runs side by side, more of them stacked.

    Args:
        runs: run → measurement → columns `value`, `low`, `high` by layer (from 1); or, for several
            series in a panel, series → such a table. Every run has the same measurements.
        title: the figure's message.
        zero: the measurements for which 0 is the question: a line is drawn there, and a mean whose
            interval reaches it is hollow.
    """
    rows, columns, shared = len(next(iter(runs.values()))), len(runs), "row"
    if stacked := columns > 2:
        rows, columns, shared = columns, rows, "col"
    figure, grid = new_figure(
        _width(columns),
        1.2 + 1.8 * rows,
        rows=rows,
        columns=columns,
        sharey=shared if len(runs) > 1 else False,
        squeeze=False,
    )
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    grid = grid.T if stacked else grid
    for column, (run, panels) in enumerate(runs.items()):
        for axes, (measurement, series) in zip(grid[:, column], panels.items(), strict=True):
            several = series if isinstance(series, Mapping) else {"": series}
            for place, (label, table) in enumerate(several.items()):
                _draw_series(axes, table, label, place, len(several), measurement in zero)
            if measurement in zero:
                axes.axhline(0, color=COLORS["muted"], lw=1, zorder=0)
            axes.set_title(measurement, fontsize=10, loc="left")
            _layer_axis(axes, max(table.index))
        first = grid[0, column]
        heading = f"{run}\n" if len(runs) > 1 else ""
        first.set_title(heading + first.get_title(loc="left"), fontsize=10, loc="left")
    _legend(figure)
    figure.headline(title)
    return figure


def _draw_series(
    axes: Axes, table: pd.DataFrame, label: str, place: int, of: int, zero: bool
) -> None:
    colour, marker = _SERIES[place % len(_SERIES)]
    places = np.asarray(table.index, dtype=float) + 0.14 * (place - (of - 1) / 2)
    axes.vlines(places, table.low, table.high, color=colour, lw=2, alpha=0.6)
    axes.plot(places, table.value, "-", color=colour, lw=1, alpha=0.5)
    clear = (table.low > 0) | (table.high < 0) | (not zero)
    faces = [colour if sure else "white" for sure in clear]
    axes.scatter(
        places,
        table.value,
        s=24,
        marker=marker,
        c=faces,
        edgecolors=colour,
        zorder=3,
        label=label or None,
    )


def _legend(figure: Drawing) -> None:
    """One legend below all panels; each label once."""
    found = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        figure.legend_below(found.values(), found)


def _width(columns: int) -> float:
    """Inches; narrow, so that labels stay legible where a page is as narrow as a phone."""
    return 4.2 if columns == 1 else WIDTH


def _layer_axis(axes: Axes, layers: int) -> None:
    axes.set_xlim(0.5, layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
