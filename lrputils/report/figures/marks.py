"""The two marks of the book: dots with intervals, row by row, and lines with bands over an axis."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lrputils.report.figures.style import (
    COLORS,
    NAMES,
    WIDTH,
    Drawing,
    looks,
    new_figure,
)

Table = pd.DataFrame | pd.Series  # the latter has no intervals
_Panel = pd.DataFrame | Mapping[str, Table]


def dots(
    panels: Mapping[str, _Panel],
    *,
    xlabel: str,
    title: str,
    lines: Mapping[str, float] | None = None,
    line: str = "",
    zero: float | None = None,
    columns: int = 3,
) -> Drawing:
    """Draw means with intervals as dots: a panel a run, one below the other.

    Args:
        panels: name → series → columns `value`, `low`, `high` by row, or values alone; or such a
            table, indexed by (series, row).
        lines: panel → where to draw a dashed line; `line` is what it stands for.
        zero: where to draw a thin line in every panel.
        columns: of the legend; 0 for none, where the rows name the series.

    Raises:
        ValueError: a series of which nothing would be seen.
    """
    tables = {name: pd.concat(_series(panel)) for name, panel in panels.items()}
    own = looks(label for table in tables.values() for label in table.index.unique(0))
    heights = [table.index.unique(1).size for table in tables.values()]
    size = {"rows": len(tables), "squeeze": False, "sharex": True, "height_ratios": heights}
    most = max(table.groupby(level=1).size().max() for table in tables.values())
    height = 1.4 + 0.3 * len(tables) + max(0.36, 0.11 * most) * sum(heights)
    figure, axes = new_figure(WIDTH, height, title=title, **size)
    figure.values = pd.concat(tables)
    for axis, (name, table) in zip(axes.flat, tables.items(), strict=True):
        if zero is not None:
            axis.axvline(zero, color=COLORS["faint"], lw=1, zorder=0)
        if lines is not None and name in lines:
            style = {"color": COLORS["ink"], "ls": (0, (3, 2)), "lw": 1.5, "zorder": 0}
            axis.axvline(lines[name], label=line, **style)
        rows, series = list(table.index.unique(1)), list(table.index.unique(0))
        shifts = np.linspace(-0.22, 0.22, len(series)) if len(series) > 1 else [0.0]
        alone = table.value.groupby(level=1).count().reindex(rows).to_numpy() == 1
        for shift, label in zip(shifts, series, strict=True):
            part = table.loc[label].reindex(rows)
            places = np.arange(len(rows)) + np.where(alone, 0, shift)
            colour, shape, weight, _ = own[label]
            axis.hlines(places, part.low, part.high, color=colour, lw=2 * weight)
            look = {"color": colour, "ms": 5 * weight, "label": NAMES.get(label, label) or None}
            _seen(*axis.plot(part.value, places, shape, **look), label, name)
        axis.set_yticks(range(len(rows)), [NAMES.get(row, row) for row in rows])
        axis.set_title(name, fontsize=10, loc="left")
        axis.tick_params(axis="y", length=0)
        axis.set_ylim(len(rows) - 0.5, -0.5)
    axes.flat[-1].set_xlabel(xlabel)
    # Few enough that their labels stay apart; the panels share them.
    axes.flat[-1].xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
    if columns:
        figure.legend_below(columns)
    return figure


def lines(
    panels: Mapping[str | tuple[str, str], _Panel],
    *,
    xlabel: str,
    title: str,
    ylabel: str = "",
    height: float = 2.3,
    zero: bool = False,
    dashed: Collection[str] = ("the paper",),
    columns: int = 2,
    **sharing: bool | str,
) -> Drawing:
    """Draw means over an axis as lines with their intervals as bands: panels in two columns.

    The book's own small model is no evidence, and gets no band.

    Args:
        panels: name → series → columns `value`, `low`, `high` by place, or values alone; or such a
            table, indexed by (series, place). A name may be (heading, label of the vertical axis).
        ylabel: of the panels that name none.
        height: of a row of panels, in inches.
        zero: draw a thin line there in every panel.
        dashed: series that are.
        columns: of the legend.
        sharing: `sharex` and `sharey` of the panels; by default they share the vertical axis.

    Raises:
        ValueError: a series of which nothing would be seen.
    """
    rows = -(-len(panels) // 2)
    size = {"rows": rows, "columns": min(len(panels), 2), "squeeze": False, "sharey": True}
    figure, grid = new_figure(WIDTH, 0.8 + rows * height, title=title, **size | sharing)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    tables = {name: _series(panel) for name, panel in panels.items()}
    figure.values = pd.concat({name: pd.concat(parts) for name, parts in tables.items()})
    own = looks(label for panel in tables.values() for label in panel)
    before = heading_before = ""
    for number, (axes, name) in enumerate(zip(grid.flat, panels, strict=False)):
        heading, label = name if isinstance(name, tuple) else (name, ylabel)
        if zero:
            axes.axhline(0, color=COLORS["faint"], lw=1, zorder=0)
        for series, table in tables[name].items():
            colour, shape, weight, line = own[series]
            look = {"color": colour, "lw": 1.6 * weight}
            if table.low.notna().any() and weight >= 1:  # a faint band would still widen the axis
                axes.fill_between(
                    table.index, table.low, table.high, alpha=0.18, **look | {"lw": 0}
                )
            look["label"] = NAMES.get(series, series) or None
            look["ls"] = (0, (3, 2)) if series in dashed else line
            look["marker"] = shape if len(table) < 20 and series not in dashed else ""
            _seen(*axes.plot(table.index, table.value, ms=4 * weight, **look), series, heading)
            if pd.api.types.is_integer_dtype(table.index):
                axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
        if number % 2 == 0 or heading != heading_before:
            axes.set_title(NAMES.get(heading, heading), fontsize=10, loc="left")
        if number % 2 == 0 or label != before:
            axes.set_ylabel(label)
        if number + 2 >= len(panels):
            axes.set_xlabel(xlabel)
        before, heading_before = label, heading
    figure.legend_below(columns)
    return figure


def _series(panel: _Panel) -> dict[str, pd.DataFrame]:
    """A panel's tables by series; one without a name if its index has one level."""
    if not isinstance(panel, Mapping):
        parts = panel.groupby(level=0, sort=False) if panel.index.nlevels > 1 else ()
        panel = {name: part.droplevel(0) for name, part in parts} or {"": panel}
    tables = {
        name: table.to_frame("value") if isinstance(table, pd.Series) else table
        for name, table in panel.items()
    }
    return {n: table.reindex(columns=["value", "low", "high"]) for n, table in tables.items()}


def _seen(mark: Line2D, label: str, panel: str) -> None:
    """Refuse a series without a place in the panel: a figure of axes alone looks finished."""
    if not np.isfinite(np.asarray(mark.get_xydata(), float)).all(axis=1).any():
        raise ValueError(f"nothing of the series {label!r} can be drawn in panel {panel!r}")
