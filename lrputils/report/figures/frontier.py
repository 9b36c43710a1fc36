"""The figure of the remedy: agreement with leave-one-out against its cost."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from lrputils.report.figures.style import COLORS, WIDTH, new_figure

# Setting → its name in figures, its colour and marker.
LINES = {
    "one-pass": ("one pass, gates open", "ink", "^"),
    "halves": ("two groups at gate 1/2", "orange", "s"),
    "one + halves": ("one pass + two groups", "green", "o"),
    "one + quarters": ("one pass + four groups", "purple", "D"),
    "one + eighths": ("one pass + eight groups", "sky", "P"),
}
POINTS = {
    "attnlrp": ("AttnLRP", "vermilion", "v"),
    "cp-lrp": ("CP-LRP", "blue", "X"),
    "attention-x-grad": ("attention × gradient", "muted", "<"),
    "ig": ("Integrated Gradients", "ink", "p"),
}
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def frontier(runs: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw mean r against the share of leave-one-out's passes, a panel a run.

    `runs`: name → `lrputils.study.frontier.table` by setting and verified share. A setting of
    `LINES` is a line along the shares, one of `POINTS` a point; bars are 95% intervals.
    """
    count, cheapest = len(runs), min(table.cost.min() for table in runs.values())
    size = {"rows": count, "sharex": True, "squeeze": False}
    title = "A token's removal, estimated: what each pass buys"
    figure, panels = new_figure(WIDTH, 1.4 + 2.4 * count, title=title, **size)
    for axes, (run, table) in zip(panels[:, 0], runs.items(), strict=True):
        settings = set(table.index.get_level_values(0))
        for setting, (label, colour, marker) in (LINES | POINTS).items():
            if setting in settings:
                part = table.loc[setting].sort_index()
                part = part if setting in LINES else part.loc[[0.0]]
                look = {"color": COLORS[colour], "lw": 1.5}
                axes.vlines(part.cost, part.low, part.high, alpha=0.5, **look)
                axes.plot(part.cost, part.r, f"-{marker}", label=label, ms=5, **look)
        axes.axhline(1, color=COLORS["faint"], lw=1, zorder=0)
        axes.set_xscale("log")
        axes.minorticks_off()
        shares = [share for share in _TICKS if share > cheapest / 1.5]
        axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
        axes.set_title(run, fontsize=10, loc="left")
        axes.set_ylabel("Pearson r with LOO")
    panels[-1, 0].set_xlabel("forward passes, as a share of LOO's")
    figure.legend_below()
    return figure
