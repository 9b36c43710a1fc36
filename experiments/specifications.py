"""Figures of the specification grid: the curve above its choices, and what decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patheffects import withStroke

from lrputils.model.readout import READOUTS
from lrputils.removal.leave_one_out import REMOVALS
from lrputils.report.figures.style import COLORS, NAMES, WIDTH, Drawing, looks, new_figure
from lrputils.study.agreement import COEFFICIENTS, COUNTED, NORMALISATIONS

# How much more often than over the whole grid a choice is made, at the dark end.
_MOST = 3
_DIFFERENCE = "AttnLRP − CP-LRP"
_SHADES = LinearSegmentedColormap.from_list("often", ["#ffffff", COLORS["ink"]])
# No method's colours, since a side is one method's of two in each figure.
_SIDES = {"below": "gold", "undecided": "faint", "above zero": "violet"}
_THIN = ("--", ":", "-.")
_MARKS = (("D", "ink"), ("s", "pine"), ("^", "teal"), ("v", "indigo"))
_ORDER = ["default", *READOUTS, *COUNTED, *NORMALISATIONS, *REMOVALS, *COEFFICIENTS]


def specification_curve(
    table: pd.DataFrame,
    marks: Mapping[str, pd.DataFrame] | None = None,
    others: Mapping[str, pd.Series] | None = None,
    *,
    bins: int = 48,
    title: str = "One question, every convention",
) -> Drawing:
    """Draw a specification curve and, below it, which choices its parts were made of.

    `marks`: label → rows of the table to point out, four at most, each with its read-out beside it;
    `others`: label → values of further grids, each a thin line from its least to its largest; the
    lower panel divides the specifications into `bins` parts of equal size.
    """
    table = table.sort_values("value", kind="stable")
    levels = [level for level in table.index.names if table.index.unique(level).size > 1]
    rows = sum(1 + table.index.unique(level).size for level in levels)
    size = {"rows": 2, "sharex": True, "height_ratios": [2.6, 0.19 * rows]}
    figure, (above, below) = new_figure(WIDTH, 3.9 + 0.19 * rows, title=title, **size)
    figure.values = pd.concat(marks) if marks else table
    places = np.arange(len(table)) + 0.5
    bins = min(bins, len(table))
    _curve(above, table, places, bins)
    own = looks(others or {})
    for (label, values), style in zip((others or {}).items(), _THIN, strict=False):
        across = np.linspace(0, len(table), len(values))
        look = {"color": own[label].colour, "ls": style, "lw": 1.2, "label": label}
        above.plot(across, np.sort(values), **look)
    for (label, marked), (shape, colour) in zip((marks or {}).items(), _MARKS, strict=False):
        where = table.index.get_indexer(marked.index)
        look = {"color": COLORS[colour], "label": label, "zorder": 5, "mec": "white", "mew": 0.8}
        values = table.value.to_numpy()[where]
        above.plot(places[where], values, shape, ms=8, clip_on=False, **look)
        beside: dict[tuple[float, float], list[str]] = {}
        for x, y, name in zip(
            places[where], values, marked.index.get_level_values("read-out"), strict=True
        ):
            # Marks that lie on each other have one label.
            near = [at for at in beside if abs(at[0] - x) < 0.04 * len(table)]
            beside.setdefault(near[0] if near else (x, y), []).append(NAMES.get(name, name))
        for (x, y), names in beside.items():
            # There is little room on the right, and a label under a positive value meets zero.
            right = x > 0.7 * len(table)
            place = {"ha": "right" if right else "left", "xytext": (-9 if right else 9, 8)}
            if y < 0:
                place["xytext"] = place["xytext"][0], -16
            place["path_effects"] = [withStroke(linewidth=3, foreground="white")]
            look = {"color": COLORS[colour], "fontsize": 10, "textcoords": "offset points"}
            above.annotate(", ".join(names), (x, y), **look, **place)
    above.set_ylabel(_DIFFERENCE)
    above.margins(y=0.12)
    _choices(below, table, levels, bins)
    below.set_xlabel(f"{len(table)} specifications, sorted")
    figure.legend_below(columns=1)
    return figure


def outcome_shares(panels: Mapping[str, pd.DataFrame], *, title: str) -> Drawing:
    """Draw how many specifications decide which way, as bars of 100%: panels side by side.

    `panels`: heading → percentages "below", "undecided" and "above zero", indexed by (group, row),
    the same in each.
    """
    index = next(iter(panels.values())).index
    groups = list(index.unique(0))
    # A line for each group's name, and one for each row.
    places = np.array([row + 1 + groups.index(group) for row, (group, _) in enumerate(index)])
    size = {"columns": len(panels), "sharey": True, "squeeze": False}
    figure, axes = new_figure(WIDTH, 1.6 + 0.2 * (len(index) + len(groups)), title=title, **size)
    figure.values = pd.concat(panels)
    for axis, (heading, table) in zip(axes.flat, panels.items(), strict=True):
        start = np.zeros(len(table))
        for side, colour in _SIDES.items():
            label = "below zero" if side == "below" else side
            look = {"color": COLORS[colour], "height": 0.8, "label": label}
            axis.barh(places, table[side], left=start, **look)
            start += table[side].to_numpy()
        axis.set_title(heading, fontsize=10, loc="left")
        axis.set(xlim=(0, 100), xlabel="% of specifications")
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    axes[0, 0].set_yticks(places, index.get_level_values(1))
    axes[0, 0].set_ylim(places[-1] + 0.6, -0.6)
    for group in groups:
        first = places[index.get_level_values(0) == group][0]
        name = axes[0, 0].text(0, first - 0.9, group, va="center", fontsize=10)
        name.set_in_layout(False)  # it may reach into the next panel's empty line
    axes[0, 0].set_zorder(1)  # or the next panel's ground would hide it there
    axes[0, 0].patch.set_visible(False)
    figure.legend_below(columns=3)
    return figure


def _curve(axes: Axes, table: pd.DataFrame, places: np.ndarray, bins: int) -> None:
    """The values as a line, the mean interval around it as a band, coloured where it is decided."""
    axes.axhline(0, color=COLORS["ink"], lw=1)
    parts = np.array_split(np.arange(len(table)), bins)
    middle = [places[part].mean() for part in parts]
    ends = ([table[end].to_numpy()[part].mean() for part in parts] for end in ("low", "high"))
    axes.fill_between(middle, *ends, color=COLORS["faint"], alpha=0.6, lw=0, label="95% interval")
    values = table.value.to_numpy()
    axes.plot(places, values, color=COLORS["muted"], lw=2)
    for decided, colour, side in (
        (table.low > 0, _SIDES["above zero"], "above"),
        (table.high < 0, _SIDES["below"], "below"),
    ):
        look = {"color": COLORS[colour], "lw": 3, "label": f"interval {side} zero"}
        axes.plot(places, np.where(decided, values, np.nan), **look)
    axes.tick_params(axis="x", length=0)


def _choices(axes: Axes, table: pd.DataFrame, levels: Sequence[str], bins: int) -> None:
    """A row a value of a choice: the darker, the more often it is made in that part."""
    edges = np.linspace(0, len(table), bins + 1)
    part = np.minimum(np.arange(len(table)) * bins // len(table), bins - 1)
    place, ticks = 0, {}
    for level in levels:
        names = table.index.get_level_values(level)
        axes.text(0, place + 0.55, level, fontweight="bold", va="center")
        for value in sorted(table.index.unique(level), key=rank):
            place += 1
            made = (names == value).astype(float)
            often = np.bincount(part, made, bins) / np.bincount(part, minlength=bins)
            shades = (often / made.mean())[None]
            box = {"vmin": 0, "vmax": _MOST, "cmap": _SHADES, "lw": 0}
            axes.pcolormesh(edges, [place + 0.08, place + 0.92], shades, **box)
            ticks[place + 0.5] = NAMES.get(value, value)
        place += 1
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.tick_params(length=0)
    axes.set(xlim=(0, len(table)), ylim=(place, 0), xticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)


def rank(value: str) -> tuple[int, str]:
    """Return a key that sorts a choice's values as the figures list them."""
    return (_ORDER.index(value) if value in _ORDER else -1), value
