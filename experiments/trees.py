"""Product trees drawn: relevance flowing down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import products
from lrputils.report.figures.style import COLORS, WIDTH, new_figure

_CENTRED = {"ha": "center", "va": "center"}


def _number(value: Fraction) -> str:
    """Write a fraction short enough for a label: exactly where it fits, else to three digits."""
    return str(value) if len(str(value)) <= 6 else f"{float(value):.3g}"


def relevance_trees(trees: Sequence[products.Node]) -> Figure:
    """Draw product trees side by side, each edge as wide as the share that flows down it.

    Every edge and leaf is labelled with its relevance.
    """
    trees = list(trees)
    widest = max(len(products.leaves(tree)) for tree in trees)
    deepest = max(len(path) for tree in trees for path in products.flow(tree))
    width, height = max(2.4, 0.8 * widest), 1.5 + 0.75 * deepest
    columns = len(trees) if width * len(trees) <= WIDTH else 1  # stacked where they do not fit
    rows = len(trees) // columns
    answers = {tuple(sorted(products.relevance(t).items())) for t in trees}
    title = f"One product, {len(answers)} ways to share its relevance"
    size = {"rows": rows, "columns": columns, "squeeze": False}
    figure, axes = new_figure(min(width * columns, WIDTH), height * rows, title=title, **size)
    for axis, tree in zip(axes.flat, trees, strict=True):
        _draw_tree(axis, tree)
    return figure


def _draw_tree(axis: Axes, tree: products.Node) -> None:
    """Draw one tree: root on top, leaves in order, edges as wide as their share."""
    reached = products.flow(tree)
    places = _places(reached)
    for path, (node, share) in reached.items():
        x, y = places[path]
        if path:
            above = places[path[:-1]]
            width = 1 + 11 * float(share)
            axis.plot([above[0], x], [above[1], y], color=COLORS["vermilion"], lw=width, zorder=1)
            middle = (0.5 * (above[0] + x), 0.5 * (above[1] + y))
            box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"}
            look = {"fontsize": 11, "bbox": box, "zorder": 3}
            axis.annotate(_number(share * tree.value), middle, **_CENTRED, **look)
        box = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": COLORS["ink"]}
        if isinstance(node, products.Factor):
            text, look = f"{node.name}\n= {_number(node.value)}", {"fontweight": "bold"}
        else:
            text, look = "×", {"fontsize": 13}
        axis.annotate(text, (x, y), bbox=box, zorder=4, **_CENTRED, **{"fontsize": 11, **look})
    x, y = places[""]
    axis.annotate(_number(tree.value), (x, y + 0.3), ha="center", va="bottom", fontsize=11)
    columns, rows = zip(*places.values(), strict=True)
    axis.set(xlim=(min(columns) - 0.6, max(columns) + 0.6), ylim=(min(rows) - 0.6, 0.75))
    axis.set_title(str(tree), fontsize=10, fontfamily="monospace")
    axis.axis("off")


def _places(
    reached: Mapping[str, tuple[products.Node, Fraction]],
) -> dict[str, tuple[float, float]]:
    """Return path → (x, y): leaves one apart, parents midway between their children."""
    leaves = [path for path, (node, _) in reached.items() if isinstance(node, products.Factor)]
    across = {path: float(place) for place, path in enumerate(leaves)}
    for path in sorted(reached.keys() - across.keys(), key=len, reverse=True):
        across[path] = (across[path + "L"] + across[path + "R"]) / 2
    return {path: (x, -float(len(path))) for path, x in across.items()}
