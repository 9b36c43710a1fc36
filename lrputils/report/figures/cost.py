"""Figures of the cost of leave-one-out: ratios, where the time goes, the model and the clock."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from lrputils.report.figures.style import COLORS, WIDTH, new_figure, two_columns

# Parts of leave-one-out's time, as `lrputils.study.cost.operations` names them.
_PARTS = {
    "matrix products": "blue",
    "attention": "sky",
    "LayerNorm": "orange",
    "activation": "purple",
    "sums and copies": "vermilion",
    "Python": "faint",
}


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
        axes.text(0.01, place + 0.5, what.split(" of ")[0], transform=across, **look)
    axes.set_ylim(places.min() - 0.6, places.max() + 1.6)
    axes.set_xscale("log")
    ticks = [t for t in (0.5, 1, 2, 5, 10) if others.low.min() / 2 < t < 2 * others.high.max()]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("times as long as ours (above 1: slower)")
    return figure


def time_goes(rows: pd.DataFrame) -> Figure:
    """Draw the parts of `bench.time_goes`, a bar a kind of texts, with the operations' own time."""
    kinds = list(dict.fromkeys(rows.texts))
    title = "Where leave-one-out's time goes, and its lower bound"
    figure, axes = new_figure(WIDTH, 1.4 + 0.75 * len(kinds), title=title)
    for place, kind in enumerate(reversed(kinds)):
        part = rows[rows.texts == kind].set_index("part")
        whole, left = part.seconds.sum(), 0.0
        for name, colour in _PARTS.items():
            share = part.seconds[name] / whole
            look = {"color": COLORS[colour], "label": name, "height": 0.5}
            axes.barh(place, share, left=left, **look)
            left += share
        bound = (part.operations / part.rate).iloc[0] / whole
        look = {"color": COLORS["ink"], "lw": 2, "ls": (0, (2, 1))}
        axes.plot([bound] * 2, [place - 0.33, place + 0.33], label="products at full rate", **look)
    axes.set_yticks(range(len(kinds)), [_broken(kind) for kind in reversed(kinds)])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("share of the time")
    figure.legend_below()
    return figure


def _broken(text: str) -> str:
    return text.replace(", ", ",\n").replace(" of ", "\nof ")


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
