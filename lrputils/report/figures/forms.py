"""The figure of attention's other forms: does the map stay?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_SERIES = (("vermilion", "o"), ("blue", "s"), ("ink", "^"), ("green", "D"))


def agreement_of_forms(
    runs: Mapping[str, pd.DataFrame],
    *,
    title: str = "One function, several AttnLRP maps",
) -> Figure:
    """Draw each form's r with the standard form's map, a series a run.

    `runs` are tables of `lrputils.study.refactorings.summary`, the standard form first; it is left
    out, as its r is 1.
    """
    forms = list(next(iter(runs.values())).index[1:])
    figure, axes = new_figure(WIDTH, 1.6 + 0.36 * len(forms), title=title)
    axes.axvline(1, color=COLORS["faint"], lw=1, zorder=0)
    places = np.arange(len(forms))
    for number, (run, table) in enumerate(runs.items()):
        colour, marker = _SERIES[number % len(_SERIES)]
        part, at = table.loc[forms], places + 0.2 * (number - (len(runs) - 1) / 2)
        axes.hlines(at, part["r low"], part["r high"], color=COLORS[colour], lw=2)
        axes.plot(part.r, at, marker, color=COLORS[colour], ms=5, label=run)
    axes.set_yticks(places, forms)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("Pearson r with the usual form's map")
    figure.legend_below(columns=1)
    return figure
