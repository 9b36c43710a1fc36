"""One look for every figure: colour-blind-safe, legible on a phone, plain in print."""

from __future__ import annotations

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, by role, so that a method keeps its colour through the whole book.
COLORS = {
    "ink": "#222222",
    "muted": "#767676",
    "faint": "#d9d9d9",
    "loo": "#222222",
    "ig": "#E69F00",
    "rollout": "#56B4E9",
    "attnlrp": "#D55E00",
    "cp-lrp": "#0072B2",
    "grad-x-input": "#CC79A7",
    "mask-gradient": "#009E73",
}
# Blue for negative, red for positive, white at zero.
DIVERGING = "RdBu_r"


def new_figure(
    width: float = 7.0, height: float = 3.2, *, rows: int = 1, columns: int = 1, **options
) -> tuple[Figure, Axes]:
    """Return `(figure, axes)` of this size in inches, closed for pyplot so that it shows once.

    A chapter's cell shows a figure by ending with it; a figure still open in pyplot would be drawn
    a second time by the notebook.
    """
    style = {
        **sns.axes_style("ticks"),
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "savefig.dpi": 150,
        "figure.dpi": 110,
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(
            rows, columns, figsize=(width, height), layout="constrained", **options
        )
    plt.close(figure)
    return figure, axes
