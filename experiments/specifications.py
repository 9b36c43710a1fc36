"""Which method is higher under which convention: the grid of chapter 6."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle

from lrputils.attribution import METHODS
from lrputils.model.readout import READOUTS
from lrputils.report.figures.style import COLORS, NAMES, WIDTH, Drawing, new_figure
from lrputils.study.agreement import COUNTED, WORDS

_TOKENS = {name: "own" if name == WORDS else name.replace(" ", "\n") for name in COUNTED}
_HIGHER = {1: "attnlrp", -1: "cp-lrp"}
_LABELS = {1: "AttnLRP higher", -1: "CP-LRP higher", 0: "neither"}


def lead_grid(panels: Mapping[str, pd.DataFrame], *, title: str) -> Drawing:
    """Draw AttnLRP − CP-LRP as grids of cells in the higher method's colour, two panels a row.

    Args:
        panels: heading → columns `value`, `higher` (1: AttnLRP, -1: CP-LRP, 0: neither) and `lead`
            (not 0: the number is bold), indexed by read-out and tokens.
    """
    rows = -(-len(panels) // 2)
    tables = {heading: _grid(table) for heading, table in panels.items()}
    places = max(len(table.index.unique(0)) for table in tables.values())
    height = 1.3 + rows * (0.75 + 0.32 * places)
    size = {"rows": rows, "columns": 2, "squeeze": False, "sharey": True}
    figure, axes = new_figure(WIDTH, height, title=title, **size)
    figure.values = pd.concat(tables)
    for axis, (heading, table) in zip(axes.flat, tables.items(), strict=False):
        _cells(axis, table)
        # A long name would reach into the next panel.
        axis.set_title(heading.replace(": ", "\n"), fontsize=10, loc="left")
    handles = [Patch(color=_colour(higher), label=label) for higher, label in _LABELS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _grid(table: pd.DataFrame) -> pd.DataFrame:
    """The columns that are drawn, read-outs and tokens in the order of the text."""
    table = table[["value", "higher", "lead"]]
    return table.reindex([(at, n) for at in READOUTS for n in COUNTED if (at, n) in table.index])


def _cells(axes: Axes, table: pd.DataFrame) -> None:
    """A square a cell, with its value."""
    readouts, tokens = list(table.index.unique(0)), list(table.index.unique(1))
    for (readout, counted), cell in table.iterrows():
        x, y = tokens.index(counted), readouts.index(readout)
        colour = _colour(int(cell.higher))
        axes.add_patch(Rectangle((x, y), 1, 1, fc=colour, ec="white", lw=1.5))
        ink = "white" if sum(to_rgb(colour)) < 1.5 else COLORS["ink"]
        number = f"{round(cell.value, 2) + 0:+.2f}".replace("0.", ".", 1).replace("-", "−")
        look = {"color": ink, "fontweight": "bold" if cell.lead else "normal"}
        axes.text(x + 0.5, y + 0.5, number, ha="center", va="center", **look)
    axes.set(xlim=(0, len(tokens)), ylim=(len(readouts), 0))
    axes.set_xticks([n + 0.5 for n in range(len(tokens))], [_TOKENS[n] for n in tokens])
    axes.set_yticks([n + 0.5 for n in range(len(readouts))], [NAMES.get(n, n) for n in readouts])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)


def _colour(higher: int) -> str:
    return COLORS[METHODS[_HIGHER[higher]].colour] if higher else "#e4e4e4"
