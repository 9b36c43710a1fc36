"""Figures of how attribution maps of texts compare with Leave-One-Out."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lrputils.report.figures.style import COLORS, WIDTH, Drawing, new_figure
from lrputils.study.specifications import EVERY, NO_CLS


def changes_by_control(tables: Mapping[str, pd.DataFrame], *, title: str) -> Drawing:
    """Draw what each control changes in r at each read-out, with and without [CLS]; a panel a run.

    `tables`: run → rows by (tokens, control), of `lrputils.report.controls.effects`, one
    normalisation.
    """
    first = next(iter(tables.values()))
    places = list(first.attrs["intervals"])
    rows = [(control, place) for control in first.index.unique("control") for place in places]
    size = {"columns": len(tables), "sharey": True, "sharex": True, "squeeze": False}
    figure, ((*panels,),) = new_figure(WIDTH, 1.9 + 0.24 * len(rows), title=title, **size)
    looks = {
        EVERY: {"color": COLORS["vermilion"], "marker": "o"},
        NO_CLS: {"color": COLORS["blue"], "marker": "s", "mfc": "white"},
    }
    for axes, (run, table) in zip(panels, tables.items(), strict=True):
        axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
        for shift, (tokens, look) in zip((-0.15, 0.15), looks.items(), strict=True):
            for y, (control, place) in enumerate(rows):
                ends = table.loc[(tokens, control), [f"{place} low", f"{place} high"]]
                axes.plot(ends, [y + shift] * 2, color=look["color"], lw=1.5)
                axes.plot(table.loc[(tokens, control), place], y + shift, ls="", ms=4, **look)
        for edge in range(len(places), len(rows), len(places)):
            axes.axhline(edge - 0.5, color=COLORS["faint"], lw=0.8, zorder=0)
        axes.set_title(run, fontsize=10, loc="left")
        axes.set_xlabel("change of r")
    for label, look in zip(("all tokens", "[CLS] left out"), looks.values(), strict=True):
        panels[0].plot([], [], ls="", ms=4, label=label, **look)
    ticks = [f"{control}: {place}" if place == places[0] else place for control, place in rows]
    panels[0].set_yticks(range(len(rows)), ticks)
    panels[0].tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    figure.legend_below(2)
    return figure
