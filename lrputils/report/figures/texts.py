"""Figures of how attribution maps of texts compare with Leave-One-Out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde

from lrputils.report.figures.style import COLORS, WIDTH, Drawing, new_figure, of_method
from lrputils.study.specifications import EVERY, NO_CLS

# How the mean of a recorded run is drawn.
_MARKED = {"mfc": "white", "mec": COLORS["ink"], "ls": "", "ms": 6, "zorder": 5}


def correlation_by_method(
    per_text: pd.DataFrame,
    summary: pd.DataFrame,
    *,
    labels: Mapping[str, str],
    recorded: Mapping[str, pd.DataFrame] | None = None,
) -> Drawing:
    """Draw each text's correlation, (texts, methods), as a dot, and each method's mean.

    `recorded`: name of a recorded run → its (texts, methods): their mean is drawn, the first run's
    distribution behind it; methods that were not recorded have none.
    """
    methods = list(per_text.columns)
    title = "How well does each map track Leave-One-Out?"
    figure, axes = new_figure(WIDTH, 1.4 + 0.5 * len(methods), title=title)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(per_text))
    for place, method in enumerate(methods):
        colour = of_method(method)
        for run, (marker, found) in enumerate(zip("DsP", (recorded or {}).values(), strict=False)):
            if method in found:
                values = found[method].dropna().to_numpy()
                if run == 0:
                    _density(axes, values, place)
                axes.plot(values.mean(), place, marker, **_MARKED)
        axes.scatter(per_text[method], place + jitter, s=9, color=colour, alpha=0.7, lw=0, zorder=2)
        row = summary.loc[method]
        axes.plot([row.low, row.high], [place, place], color=COLORS["ink"], lw=2.5, zorder=3)
        axes.plot(row.value, place, "o", color=COLORS["ink"], ms=6, zorder=4)
    axes.plot([], [], "o", color=COLORS["ink"], ms=6, label="this run")
    for marker, name in zip("DsP", recorded or (), strict=False):
        axes.plot([], [], marker, **_MARKED, label=name)
    axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
    axes.set_yticks(range(len(methods)), [labels.get(method, method) for method in methods])
    axes.invert_yaxis()
    axes.set(xlim=(-1.05, 1.05), xticks=[-1, -0.5, 0, 0.5, 1], xlabel="Pearson r with LOO")
    figure.legend_below(3)
    return figure


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


def _density(axes: Axes, values: np.ndarray, place: float) -> None:
    """The distribution of `values` as a shape around y = place."""
    if len(values) > 2 and np.ptp(values):
        grid = np.linspace(-1, 1, 201)
        density = gaussian_kde(values)(grid)
        density *= 0.4 / density.max()
        look = {"color": COLORS["faint"], "alpha": 0.8, "lw": 0, "zorder": 0}
        axes.fill_between(grid, place - density, place + density, **look)
