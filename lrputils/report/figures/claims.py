"""The figure that summarises the book: printed and recorded numbers."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from lrputils.report.figures.style import COLORS, WIDTH, new_figure


def printed_and_recorded(
    claims: pd.DataFrame, *, title: str = "What the paper prints, and what we recorded"
) -> Figure:
    """Draw each claim's printed number, and the recorded one under two conventions.

    Args:
        claims: of `lrputils.report.claims.claims`.
        title: the figure's message.
    """
    figure, axes = new_figure(WIDTH, 2.0 + 0.42 * len(claims))
    axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
    for place, (_, row) in enumerate(claims.iterrows()):
        for value, low, high, shift, colour, marker in (
            (row.recorded, row.low, row.high, -0.13, COLORS["blue"], "o"),
            (row.raw, row["raw low"], row["raw high"], 0.17, COLORS["vermilion"], "s"),
        ):
            first = place == 0
            label = {"o": "recorded, maps divided by their sums", "s": "recorded, raw"}[marker]
            axes.plot([low, high], [place + shift] * 2, color=colour, lw=2)
            axes.plot(
                value, place + shift, marker, color=colour, ms=5, label=label if first else None
            )
        axes.plot(
            row.paper,
            place,
            "D",
            mfc="white",
            mec=COLORS["ink"],
            ms=7,
            zorder=5,
            label="the paper, maps divided by their sums" if place == 0 else None,
        )
        if place and row.chapter != claims.chapter.iloc[place - 1]:
            axes.axhline(place - 0.5, color=COLORS["faint"], lw=0.8, zorder=0)
    axes.set_yticks(range(len(claims)), list(claims.index))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("mean Pearson r, or a difference of two")
    figure.headline(title)
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: not labels[i].startswith("the paper"))
    figure.legend_below([handles[i] for i in order], [labels[i] for i in order], columns=1)
    return figure
