"""Figures of how attribution maps of texts compare with Leave-One-Out."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from lrputils.report.figures.style import COLORS, WIDTH, new_figure, of_method


def correlation_by_method(
    per_text: pd.DataFrame,
    summary: pd.DataFrame,
    *,
    labels: Mapping[str, str],
    published: Mapping[str, float] | None = None,
    recorded: pd.DataFrame | None = None,
    title: str = "How well does each map track Leave-One-Out?",
) -> Figure:
    """Draw each text's correlation as a dot, and each method's mean with its interval.

    Args:
        per_text: (texts, methods), correlations; NaN is left out.
        summary: by method, columns `value`, `low`, `high`.
        labels: method → name shown.
        published: method → the paper's mean, drawn as a diamond.
        recorded: (texts, methods), correlations of a recorded run, drawn as a shape behind the
            dots, its mean as a stroke; methods that were not recorded have none.
    """
    methods = list(per_text.columns)
    figure, axes = new_figure(WIDTH, 0.9 + 0.5 * len(methods), title=title)
    jitter = np.random.default_rng(0).uniform(-0.22, 0.22, len(per_text))
    for place, method in enumerate(methods):
        colour = of_method(method)
        if recorded is not None and method in recorded:
            _density(axes, recorded[method].dropna().to_numpy(), place)
        axes.scatter(per_text[method], place + jitter, s=9, color=colour, alpha=0.7, lw=0, zorder=2)
        row = summary.loc[method]
        axes.plot([row.low, row.high], [place, place], color=COLORS["ink"], lw=2.5, zorder=3)
        axes.plot(row.value, place, "o", color=COLORS["ink"], ms=6, zorder=4)
        if published and method in published:
            axes.plot(published[method], place, "D", mfc="white", mec=COLORS["ink"], ms=6, zorder=5)
    axes.axvline(0, color=COLORS["faint"], lw=1, zorder=0)
    axes.set_yticks(range(len(methods)), [labels.get(method, method) for method in methods])
    axes.invert_yaxis()
    axes.set(xlim=(-1.05, 1.05), xticks=[-1, -0.5, 0, 0.5, 1], xlabel="Pearson r with LOO")
    return figure


def _density(axes: Axes, values: np.ndarray, place: float, height: float = 0.4) -> None:
    """The distribution of `values` as a shape around y = place, and its mean as a stroke."""
    axes.plot([values.mean()] * 2, [place - height, place + height], color=COLORS["muted"], lw=1.5)
    if len(values) > 2 and np.ptp(values):
        grid = np.linspace(-1, 1, 201)
        density = gaussian_kde(values)(grid)
        density *= height / density.max()
        look = {"color": COLORS["faint"], "alpha": 0.8, "lw": 0, "zorder": 0}
        axes.fill_between(grid, place - density, place + density, **look)
