"""Figures of the cost of leave-one-out: ratios, and the count of operations beside the clock."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS, WIDTH, new_figure, two_columns


def ratios(contests: pd.DataFrame) -> Figure:
    """Draw each other side's time over ours (`bench.measure`), with its interval, by the work."""
    others = contests[contests.groupby("what").cumcount() > 0].reset_index(drop=True)
    starts = others.what != others.what.shift()
    places = -(np.arange(len(others)) + 0.9 * starts.cumsum()).to_numpy()
    title = "The same scores, computed otherwise: time, ours = 1"
    figure, axes = new_figure(WIDTH, 1.1 + 0.2 * (len(others) + starts.sum()), title=title)
    axes.axvline(1, color=COLORS["ink"], lw=1)
    axes.hlines(places, others.low, others.high, lw=2, alpha=0.5, color=COLORS["blue"])
    axes.plot(others.ratio, places, "o", ms=5, color=COLORS["blue"])
    axes.set_yticks(places, others.side)
    across = axes.get_yaxis_transform()
    for place, what in zip(places[starts], others.what[starts], strict=True):
        look = {"va": "bottom", "weight": "bold", "size": 10, "backgroundcolor": "white"}
        axes.text(0.01, place + 0.5, _titled(what), transform=across, **look)
    axes.set_ylim(places.min() - 0.6, places.max() + 1.6)
    axes.set_xscale("log")
    ticks = [t for t in (0.5, 1, 2, 5, 10) if others.low.min() / 2 < t < 2 * others.high.max()]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("times as long as ours (above 1: slower)")
    return figure


def _titled(what: str) -> str:
    """The piece of work without its lengths, a method by its label."""
    short = what.split(" of ")[0]
    name = re.match(r"[\w-]*", short)[0]
    return METHODS[name].label + short[len(name) :] if name in METHODS else short


def model_and_clock(rows: pd.DataFrame) -> Figure:
    """Draw seconds of leave-one-out of a text, a panel for each thing that varies.

    Dots are the seconds of `scaling.model_against_clock`; the line is `operations` / `rate`, the
    time of the matrix products alone.
    """
    varied = list(dict.fromkeys(rows.varied))
    title = "Leave-one-out of one text: the clock, and the count of operations"
    figure, panels = two_columns(len(varied), 2.1, title, sharey=True)
    for axes, name in zip(panels, varied, strict=True):
        part = rows[rows.varied == name].sort_values("value")
        bound = part.operations / part.rate
        axes.plot(part.value, bound, "-", color=COLORS["muted"], lw=2, label="operations / rate")
        axes.plot(part.value, part.seconds, "o", color=COLORS["blue"], ms=5, label="measured")
        axes.set_xscale("log", base=2)
        axes.set_xticks(part.value, [f"{value:g}" for value in part.value])
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_title(name, fontsize=10, loc="left")
    for axes in panels[::2]:
        axes.set_ylabel("seconds")
    figure.legend_below()
    return figure
