"""Figures over a model's layers: the ablations of AttnLRP, and measurements layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import COLORS, WIDTH, band, new_figure
from lrputils.study.softmax_errors.ablation import RAW, SUM_TO_ONE, layer_count
from lrputils.study.variants import ABLATIONS

_CAPTIONS = ("front: layers 1 to k", "back: layers k to {layers}", "single: layer k alone")
_COLORS = {RAW: COLORS["ink"], SUM_TO_ONE: COLORS["blue"]}
_SERIES = (("ink", "o"), ("blue", "s"), ("vermilion", "^"), ("green", "D"))


def ablations(
    runs: Mapping[str, Mapping[str, pd.DataFrame]],
    published: Mapping[str, pd.Series] | None = None,
    *,
    title: str = "CP's rule in the first, the last, or one layer",
) -> Figure:
    """Draw the ablations of several runs: a column a run, a row each of `ABLATIONS`.

    Args:
        runs: run → convention (`RAW`, `SUM_TO_ONE`) → columns `value`, `low`, `high` by ablation
            and layer, with ("attnlrp", 0) among the rows where there is one: a dotted line.
        published: run → the paper's means by ablation and layer, dashed. Where the model has
            another number of layers, they are drawn at the same relative depth.
    """
    size = {"rows": 3, "columns": len(runs), "sharey": True, "squeeze": False}
    figure, grid = new_figure(_width(len(runs)), 7.0, title=title, **size)
    for column, (run, summaries) in zip(grid.T, runs.items(), strict=True):
        layers = layer_count(next(iter(summaries.values())))
        for axes, ablation, caption in zip(column, ABLATIONS, _CAPTIONS, strict=True):
            for convention, summary in summaries.items():
                line = {"color": _COLORS.get(convention, COLORS["muted"]), "label": convention}
                band(axes, summary.loc[ablation], ls="-", marker="o", ms=3.5, lw=1.6, **line)
                if ("attnlrp", 0) in summary.index:
                    dotted = {"color": line["color"], "lw": 1, "ls": ":", "zorder": 1}
                    axes.axhline(summary.value["attnlrp", 0], **dotted)
            if published and run in published:
                _draw_published(axes, ablation, published[run], layers)
            axes.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
            heading = f"{run}\n" if axes is column[0] else ""
            _layer_axis(axes, heading + caption.format(layers=layers), layers)
        column[-1].set_xlabel("layer k")
    for axes in grid[:, 0]:
        axes.set_ylabel("r with LOO")
    figure.legend_below()
    return figure


def _draw_published(axes: Axes, ablation: str, published: pd.Series, layers: int) -> None:
    theirs = layer_count(published)
    numbers = np.arange(1, theirs + 1)
    places = {
        "front": numbers * layers / theirs,
        "back": layers + 1 - (theirs + 1 - numbers) * layers / theirs,
        "single": (numbers - 0.5) * layers / theirs + 0.5,
    }[ablation]
    line = {"color": COLORS["muted"], "lw": 1.8, "zorder": 1, "label": "the paper"}
    axes.plot(places, published[ablation], "--", **line)


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
    size = {"rows": rows, "columns": columns, "squeeze": False}
    size["sharey"] = shared if len(runs) > 1 else False
    figure, grid = new_figure(_width(columns), 1.2 + 1.8 * rows, title=title, **size)
    for axes in grid[-1]:
        axes.set_xlabel("layer")
    for column, (run, panels) in zip(grid if stacked else grid.T, runs.items(), strict=True):
        for axes, (measurement, series) in zip(column, panels.items(), strict=True):
            several = series if isinstance(series, Mapping) else {"": series}
            for place, (label, table) in enumerate(several.items()):
                shift = 0.14 * (place - (len(several) - 1) / 2)
                _draw_series(axes, table, label, _SERIES[place % 4], shift, measurement in zero)
            if measurement in zero:
                axes.axhline(0, color=COLORS["muted"], lw=1, zorder=0)
            heading = f"{run}\n" if axes is column[0] and len(runs) > 1 else ""
            _layer_axis(axes, heading + measurement, max(table.index))
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


def _width(columns: int) -> float:
    """Inches; narrow, so that labels stay legible where a page is as narrow as a phone."""
    return 4.2 if columns == 1 else WIDTH


def _layer_axis(axes: Axes, title: str, layers: int) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(0.5, layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
