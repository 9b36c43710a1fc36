"""Product trees drawn: relevance flowing down, and its spread over all bracketings."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lrputils import products
from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_CENTRED = {"ha": "center", "va": "center"}


def number(value: Fraction) -> str:
    """Write a fraction short enough for a label: exactly where it fits, else to three digits."""
    return str(value) if len(str(value)) <= 6 else f"{float(value):.3g}"


def relevance_trees(trees: Sequence[products.Node], split="equal", **options) -> Figure:
    """Draw product trees side by side, each edge as wide as the share that flows down it.

    Every edge and leaf is labelled with its relevance; options as in `products.flow`.
    """
    trees = list(trees)
    if not trees:
        raise ValueError("relevance_trees needs at least one tree")
    widest = max(len(products.leaves(tree)) for tree in trees)
    deepest = max(max(products.leaf_depths(tree)) for tree in trees)
    width, height = max(2.4, 0.8 * widest), 1.5 + 0.75 * deepest
    columns = len(trees) if width * len(trees) <= WIDTH else 1  # stacked where they do not fit
    rows = len(trees) // columns
    answers = {tuple(sorted(products.relevance(t, split, **options).items())) for t in trees}
    title = f"One product, {len(answers)} ways to share its relevance"
    if len(answers) == 1:
        title = "These trees share relevance alike"
    if len(trees) == 1:
        title = "Relevance flows down the tree"
    size = {"rows": rows, "columns": columns, "squeeze": False}
    figure, axes = new_figure(min(width * columns, WIDTH), height * rows, title=title, **size)
    for axis, tree in zip(axes.flat, trees, strict=True):
        _draw_tree(axis, tree, products.flow(tree, split, **options))
    return figure


def _draw_tree(axis: Axes, tree: products.Node, visits: Sequence[products.Visit]) -> None:
    """Draw one tree: root on top, leaves in order, edges as wide as their share."""
    places = _places(tree)
    for path, node, share in visits:
        x, y = places[path]
        if path:
            above = places[path[:-1]]
            width = 1 + 11 * float(share)
            axis.plot([above[0], x], [above[1], y], color=COLORS["vermilion"], lw=width, zorder=1)
            middle = (0.5 * (above[0] + x), 0.5 * (above[1] + y))
            box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
            look = {"fontsize": 11, "bbox": box, "zorder": 3}
            axis.annotate(number(share * tree.value), middle, **_CENTRED, **look)
        box = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": COLORS["ink"]}
        if isinstance(node, products.Factor):
            text, look = f"{node.name}\n= {number(node.value)}", {"fontweight": "bold"}
        else:
            text, look = "×", {"fontsize": 13}
        axis.annotate(text, (x, y), bbox=box, zorder=4, **_CENTRED, **{"fontsize": 11, **look})
    x, y = places[()]
    axis.annotate(number(tree.value), (x, y + 0.3), ha="center", va="bottom", fontsize=11)
    columns, rows = zip(*places.values(), strict=True)
    axis.set(xlim=(min(columns) - 0.6, max(columns) + 0.6), ylim=(min(rows) - 0.6, 0.75))
    axis.set_title(str(tree), fontsize=10, fontfamily="monospace")
    axis.axis("off")


def _places(tree: products.Node) -> dict[tuple[int, ...], tuple[float, float]]:
    """Return path → (x, y): leaves one apart, parents midway between their outer children."""
    places: dict[tuple[int, ...], tuple[float, float]] = {}
    leaves_so_far = 0

    def place(node: products.Node, path: tuple[int, ...]) -> float:
        nonlocal leaves_so_far
        if isinstance(node, products.Product):
            inside = [place(child, (*path, i)) for i, child in enumerate(node.children)]
            x = 0.5 * (inside[0] + inside[-1])
        else:
            x = float(leaves_so_far)
            leaves_so_far += 1
        places[path] = (x, -float(len(path)))
        return x

    place(tree, ())
    return places


def share_spread(largest: int) -> Figure:
    """Draw the shares of an outer and an inner factor over all bracketings of 3 … `largest`.

    A dot grows with the fraction of the bracketings that give this share; the line is 1/k.
    """
    if isinstance(largest, bool) or not isinstance(largest, int) or largest < 3:
        raise ValueError(f"largest must be an integer from 3, not {largest!r}")
    counts = {k: products.share_counts(k) for k in range(3, largest + 1)}
    title = "More factors, more room for the brackets"
    figure, axes = new_figure(4.8, 3.5, title=title, columns=2, sharey=True)
    panels = {"first factor": lambda k: 0, "middle factor": lambda k: k // 2}
    for axis, (name, position) in zip(axes, panels.items(), strict=True):
        for k, factors in counts.items():
            tally = factors[position(k)]
            sizes = [12 + 240 * n / tally.total() for n in tally.values()]
            look = {"color": COLORS["vermilion"], "edgecolors": "white", "linewidths": 0.5}
            axis.scatter([k] * len(tally), [*map(float, tally)], s=sizes, zorder=3, **look)
        axis.plot([*counts], [1 / k for k in counts], color=COLORS["blue"], lw=2, label="1/k")
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="factors k", xticks=[*counts], xlim=(2.4, largest + 0.6), yscale="log")
    shares = [Fraction(1, 2**depth) for depth in range(1, largest)]
    axes[0].set_yticks([*map(float, shares)], [*map(str, shares)])
    axes[0].minorticks_off()
    axes[0].set_ylabel("share of the product")
    axes[1].legend(loc="lower left", frameon=False)
    return figure


def bracketing_heatmap(k: int) -> Figure:
    """Draw the shares of k factors (2 to 6) under every bracketing, one row a bracketing."""
    if isinstance(k, bool) or not isinstance(k, int) or not 2 <= k <= 6:
        raise ValueError(f"the heatmap shows 2 to 6 factors, not {k!r}")
    trees = products.bracketings(products.symbols([1] * k))
    names = [str(tree).replace(" * ", "·") for tree in trees]
    shares = pd.DataFrame([products.shares(tree) for tree in trees], index=names)
    title = f"{len(trees)} ways to bracket {k} factors, {len(shares.drop_duplicates())} answers"
    figure, axis = new_figure(4.8, 1.1 + 0.3 * len(trees), title=title)
    look = {"cmap": "cividis_r", "vmin": 0.5, "vmax": max(k - 1, 2), "cbar": False}
    sns.heatmap(-np.log2(shares.astype(float)), annot=shares.map(str), fmt="", ax=axis, **look)
    axis.set_yticks(axis.get_yticks(), names, fontfamily="monospace", rotation=0)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    return figure
