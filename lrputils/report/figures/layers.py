"""Figures over a model's layers: the ablations of AttnLRP, and measurements layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import COLORS, WIDTH, band, new_figure, two_columns, width
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
    label: str = "r with LOO",
    line: float = 0.0,
) -> Figure:
    """Draw the ablations of several runs: a column a run, a row each of `ABLATIONS`.

    Args:
        runs: run → series, as a convention (`RAW`, `SUM_TO_ONE`) or a read-out → columns `value`,
            `low`, `high` by ablation and layer, with ("attnlrp", 0) among the rows where there is
            one: a dotted line.
        published: run → the paper's means by ablation and layer, dashed. Where the model has
            another number of layers, they are drawn at the same relative depth.
        title: the figure's message.
        label: what is drawn, for the axes.
        line: where to draw a thin line in every panel.
    """
    size = {"rows": 3, "columns": len(runs), "sharey": True, "squeeze": False}
    figure, grid = new_figure(width(len(runs)), 7.0, title=title, **size)
    for column, (run, summaries) in zip(grid.T, runs.items(), strict=True):
        layers = layer_count(next(iter(summaries.values())))
        for axes, ablation, caption in zip(column, ABLATIONS, _CAPTIONS, strict=True):
            for place, (name, summary) in enumerate(summaries.items()):
                colour, marker = _SERIES[place % 4]
                look = {"color": _COLORS.get(name, COLORS[colour]), "label": name}
                look["marker"] = "o" if name in _COLORS else marker
                band(axes, summary.loc[ablation], ls="-", ms=3.5, lw=1.6, **look)
                if ("attnlrp", 0) in summary.index:
                    dotted = {"color": look["color"], "lw": 1, "ls": ":", "zorder": 1}
                    axes.axhline(summary.value["attnlrp", 0], **dotted)
            if published and run in published:
                _draw_published(axes, ablation, published[run], layers)
            axes.axhline(line, color=COLORS["faint"], lw=1, zorder=0)
            heading = f"{run}\n" if axes is column[0] else ""
            _layer_axis(axes, heading + caption.format(layers=layers), layers)
        column[-1].set_xlabel("layer k")
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
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


def halves(
    runs: Mapping[str, pd.DataFrame], published: Mapping[str, float], *, title: str, label: str
) -> Figure:
    """Draw a difference between two halves of the layers: a group of rows a run, a row a read-out.

    `runs`: run → columns `value`, `low`, `high` by (read-out, convention); `published`: run → what
    the paper prints, drawn beside the run's name.
    """
    ticks = [
        (run, place)
        for run, table in runs.items()
        for place in ("", *dict.fromkeys(table.index.get_level_values(0)))
    ]
    figure, axes = new_figure(WIDTH, 1.5 + 0.25 * len(ticks), title=title)
    axes.axvline(0, color=COLORS["muted"], lw=1, zorder=0)
    for convention, marker, shift in ((RAW, "o", -0.15), (SUM_TO_ONE, "s", 0.15)):
        drawn = [i for i, (_, place) in enumerate(ticks) if place]
        rows = pd.DataFrame([runs[ticks[i][0]].loc[(ticks[i][1], convention)] for i in drawn])
        look, places = {"color": _COLORS[convention], "lw": 2}, np.add(drawn, shift)
        axes.hlines(places, rows.low, rows.high, alpha=0.6, **look)
        axes.plot(rows.value, places, marker, ms=5, label=convention, **{**look, "lw": 0})
    printed = {i: published[run] for i, (run, place) in enumerate(ticks) if not place}
    look = {"mfc": "white", "mec": COLORS["ink"], "ms": 7, "label": "the paper"}
    axes.plot(list(printed.values()), list(printed), "D", **look)
    axes.set_yticks(range(len(ticks)), [place or run for run, place in ticks])
    for tick, (_, place) in zip(axes.get_yticklabels(), ticks, strict=True):
        tick.set_fontweight("normal" if place else "bold")
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    figure.legend_below(columns=3)
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
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(0.5, layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
