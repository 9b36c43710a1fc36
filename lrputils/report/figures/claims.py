"""The figure that summarises the book: printed and recorded numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lrputils.report.figures.style import COLORS, WIDTH, new_figure


def printed_and_recorded(
    claims: pd.DataFrame, *, title: str = "What the paper prints, and what we recorded"
) -> Figure:
    """Draw each claim's printed number, and the recorded one under two conventions.

    `claims` is the table of `lrputils.report.claims.claims`.
    """
    figure, axes = new_figure(WIDTH, 2.0 + 0.42 * len(claims), title=title)
    axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
    places = np.arange(len(claims))
    printed = {"mfc": "white", "mec": COLORS["ink"], "ms": 7, "zorder": 5}
    axes.plot(claims.paper, places, "D", label="the paper, maps divided by their sums", **printed)
    for value, low, high, shift, colour, marker, label in (
        ("recorded", "low", "high", -0.13, "blue", "o", "recorded, maps divided by their sums"),
        ("raw", "raw low", "raw high", 0.17, "vermilion", "s", "recorded, raw"),
    ):
        axes.hlines(places + shift, claims[low], claims[high], color=COLORS[colour], lw=2)
        axes.plot(claims[value], places + shift, marker, color=COLORS[colour], ms=5, label=label)
    for place in np.flatnonzero(np.diff(claims.chapter)):
        axes.axhline(place + 0.5, color=COLORS["faint"], lw=0.8, zorder=0)
    axes.set_yticks(places, list(claims.index))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("mean Pearson r, or a difference of two")
    figure.legend_below(columns=1)
    return figure
