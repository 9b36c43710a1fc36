"""Product trees drawn: relevance flowing down, and its spread over all bracketings."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import log2

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lrputils import products
from lrputils.report.figures.style import COLORS, WIDTH, new_figure

RELEVANCE = COLORS["vermilion"]
REFERENCE = COLORS["blue"]


def number(value: Fraction) -> str:
    """Write a fraction short enough for a label: exactly where it fits, else to three digits."""
    return str(value) if len(str(value)) <= 6 else f"{float(value):.3g}"


def relevance_trees(trees: Sequence[products.Node], split="equal", **options) -> Figure:
    """Draw product trees side by side, each edge as wide as the share that flows down it.

    Every edge and leaf is labelled with its relevance; `split` and `options` as in
    `products.flow`.
    """
    trees = list(trees)
    if not trees:
        raise ValueError("relevance_trees needs at least one tree")
    widest = max(len(products.leaves(tree)) for tree in trees)
    deepest = max(max(products.leaf_depths(tree)) for tree in trees)
    width, height = max(2.4, 0.8 * widest), 1.5 + 0.75 * deepest
    columns = len(trees) if width * len(trees) <= WIDTH else 1  # stacked where they do not fit
    rows = len(trees) // columns
    figure, axes = new_figure(
        min(width * columns, WIDTH), height * rows, rows=rows, columns=columns, squeeze=False
    )
    answers = set()
    for axis, tree in zip(axes.flat, trees, strict=True):
        _draw_tree(axis, tree, products.flow(tree, split, **options))
        answers.add(tuple(sorted(products.relevance(tree, split, **options).items())))
    figure.headline(_message(len(trees), len(answers)))
    return figure


def _message(trees: int, answers: int) -> str:
    if trees == 1:
        return "Relevance flows down the tree"
    if answers == 1:
        return "These trees share relevance alike"
    return f"One product, {answers} ways to share its relevance"


def _draw_tree(axis: Axes, tree: products.Node, visits: Sequence[products.Visit]) -> None:
    """Draw one tree: root on top, leaves in order, edges as wide as their share."""
    places = _places(tree)
    for path, node, share in visits:
        x, y = places[path]
        amount = number(share * tree.value)
        if path:
            above = places[path[:-1]]
            width = 1 + 11 * float(share)
            axis.plot([above[0], x], [above[1], y], color=RELEVANCE, lw=width, zorder=1)
            axis.annotate(
                amount,
                (0.5 * (above[0] + x), 0.5 * (above[1] + y)),
                ha="center",
                va="center",
                fontsize=11,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"},
                zorder=3,
            )
        leaf = isinstance(node, products.Factor)
        axis.annotate(
            f"{node.name}\n= {number(node.value)}" if leaf else "×",
            (x, y),
            ha="center",
            va="center",
            fontweight="bold" if leaf else "normal",
            fontsize=11 if leaf else 13,
            bbox={"boxstyle": "round,pad=0.3", "fc": "white", "ec": COLORS["ink"]},
            zorder=4,
        )
    x, y = places[()]
    axis.annotate(number(tree.value), (x, y + 0.3), ha="center", va="bottom", fontsize=11)
    columns = [place[0] for place in places.values()]
    rows = [place[1] for place in places.values()]
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
    figure, axes = new_figure(4.8, 3.5, columns=2, sharey=True)
    panels = {"first factor": lambda k: 0, "middle factor": lambda k: k // 2}
    for axis, (name, position) in zip(axes, panels.items(), strict=True):
        for k, factors in counts.items():
            tally = factors[position(k)]
            axis.scatter(
                [k] * len(tally),
                [float(share) for share in tally],
                s=[12 + 240 * n / tally.total() for n in tally.values()],
                color=RELEVANCE,
                edgecolors="white",
                linewidths=0.5,
                zorder=3,
            )
        axis.plot([*counts], [1 / k for k in counts], color=REFERENCE, lw=2, label="1/k")
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="factors k", xticks=[*counts], xlim=(2.4, largest + 0.6), yscale="log")
    shares = [Fraction(1, 2**depth) for depth in range(1, largest)]
    axes[0].set_yticks([float(share) for share in shares], [str(share) for share in shares])
    axes[0].minorticks_off()
    axes[0].set_ylabel("share of the product")
    axes[1].legend(loc="lower left", frameon=False)
    figure.headline("More factors, more room for the brackets")
    return figure


def bracketing_heatmap(k: int) -> Figure:
    """Draw the shares of k factors (2 to 6) under every bracketing, one row a bracketing."""
    if isinstance(k, bool) or not isinstance(k, int) or not 2 <= k <= 6:
        raise ValueError(f"the heatmap shows 2 to 6 factors, not {k!r}")
    trees = products.bracketings(products.symbols([1] * k))
    shares = [[*products.shares(tree).values()] for tree in trees]
    depths = np.array([[-log2(share) for share in row] for row in shares])
    figure, axis = new_figure(4.8, 1.1 + 0.3 * len(trees))
    axis.imshow(depths, cmap="cividis_r", aspect="auto", vmin=0.5, vmax=max(k - 1, 2))
    for (row, column), depth in np.ndenumerate(depths):
        axis.annotate(
            str(shares[row][column]),
            (column, row),
            ha="center",
            va="center",
            color="white" if depth > 0.55 * k else "black",
        )
    names = [str(tree).replace(" * ", "·") for tree in trees]
    axis.set_yticks(range(len(trees)), names, fontfamily="monospace")
    axis.set_xticks(range(k), [f"x{i}" for i in range(1, k + 1)])
    axis.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    axis.spines[:].set_visible(False)
    answers = len({*map(tuple, shares)})
    figure.headline(f"{len(trees)} ways to bracket {k} factors, {answers} answers")
    return figure
