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
    title: str = "How well does each map track Leave-One-Out?",
) -> Drawing:
    """Draw each text's correlation as a dot, and each method's mean with its interval.

    Args:
        per_text: (texts, methods), correlations; NaN is left out.
        summary: by method, columns `value`, `low`, `high`.
        labels: method → name shown.
        recorded: name of a recorded run → (texts, methods), its correlations: their mean is drawn,
            the first run's distribution behind it; methods that were not recorded have none.
    """
    methods = list(per_text.columns)
    figure, axes = new_figure(WIDTH, 1.4 + 0.5 * len(methods), title=title)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(per_text))
    for place, method in enumerate(methods):
        colour = of_method(method)
        for run, (marker, found) in enumerate(zip("DsP", (recorded or {}).values(), strict=False)):
            if method in found:
                values = found[method].dropna().to_numpy()
                _recorded(axes, values, place, marker, shape=run == 0)
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


def changes_by_control(
    tables: Mapping[str, pd.DataFrame], names: Mapping[str, str], *, title: str
) -> Drawing:
    """Draw what each control changes in r at each read-out, with and without [CLS]; a panel a run.

    Args:
        tables: run → rows by (tokens, control), `side_by_side` by read-out.
        names: control → name shown.
    """
    first = next(iter(tables.values()))
    places = list(first.attrs["intervals"])
    rows = [(control, place) for control in names for place in places]
    size = {"columns": len(tables), "sharey": True, "sharex": True}
    figure, panels = new_figure(WIDTH, 1.9 + 0.24 * len(rows), title=title, **size)
    for axes, (run, table) in zip(np.atleast_1d(panels), tables.items(), strict=True):
        axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
        for shift, tokens, filled in ((-0.15, EVERY, True), (0.15, NO_CLS, False)):
            colour = COLORS["vermilion" if filled else "blue"]
            look = {"marker": "o" if filled else "s", "mfc": colour if filled else "white"}
            for y, (control, place) in enumerate(rows, 0):
                value, low, high = table.loc[
                    (tokens, control), [place, f"{place} low", f"{place} high"]
                ]
                axes.plot([low, high], [y + shift] * 2, color=colour, lw=1.5)
                label = ("all tokens", "[CLS] left out")[not filled] if y == 0 else None
                axes.plot(value, y + shift, ls="", color=colour, ms=4, label=label, **look)
        for group in range(1, len(names)):
            axes.axhline(group * len(places) - 0.5, color=COLORS["faint"], lw=0.8, zorder=0)
        axes.set_title(run, fontsize=10, loc="left")
        axes.set_xlabel("change of r")
    panels = np.atleast_1d(panels)
    ticks = [f"{names[c]}: {p}" if p == places[0] else p for c, p in rows]
    panels[0].set_yticks(range(len(rows)), ticks)
    panels[0].tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    figure.legend_below(2)
    return figure


def _recorded(axes: Axes, values: np.ndarray, place: float, marker: str, *, shape: bool) -> None:
    if shape:
        _density(axes, values, place)
    axes.plot(values.mean(), place, marker, **_MARKED)


def _density(axes: Axes, values: np.ndarray, place: float, height: float = 0.4) -> None:
    """The distribution of `values` as a shape around y = place."""
    if len(values) > 2 and np.ptp(values):
        grid = np.linspace(-1, 1, 201)
        density = gaussian_kde(values)(grid)
        density *= height / density.max()
        look = {"color": COLORS["faint"], "alpha": 0.8, "lw": 0, "zorder": 0}
        axes.fill_between(grid, place - density, place + density, **look)
