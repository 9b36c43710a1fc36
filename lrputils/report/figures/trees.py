"""Product trees drawn: relevance flowing down."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lrputils import products
from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_CENTRED = {"ha": "center", "va": "center"}


def number(value: Fraction) -> str:
    """Write a fraction short enough for a label: exactly where it fits, else to three digits."""
    return str(value) if len(str(value)) <= 6 else f"{float(value):.3g}"


def relevance_trees(trees: Sequence[products.Node]) -> Figure:
    """Draw product trees side by side, each edge as wide as the share that flows down it.

    Every edge and leaf is labelled with its relevance.
    """
    trees = list(trees)
    if not trees:
        raise ValueError("relevance_trees needs at least one tree")
    widest = max(len(products.leaves(tree)) for tree in trees)
    deepest = max(max(products.leaf_depths(tree)) for tree in trees)
    width, height = max(2.4, 0.8 * widest), 1.5 + 0.75 * deepest
    columns = len(trees) if width * len(trees) <= WIDTH else 1  # stacked where they do not fit
    rows = len(trees) // columns
    answers = {tuple(sorted(products.relevance(t).items())) for t in trees}
    title = f"One product, {len(answers)} ways to share its relevance"
    if len(answers) == 1:
        title = "These trees share relevance alike"
    if len(trees) == 1:
        title = "Relevance flows down the tree"
    size = {"rows": rows, "columns": columns, "squeeze": False}
    figure, axes = new_figure(min(width * columns, WIDTH), height * rows, title=title, **size)
    for axis, tree in zip(axes.flat, trees, strict=True):
        _draw_tree(axis, tree, products.flow(tree))
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
