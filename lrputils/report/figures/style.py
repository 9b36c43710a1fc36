"""One look for every figure: colour-blind-safe, legible on a phone, plain in print."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable
from itertools import cycle
from typing import Any, NamedTuple

import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from lrputils.report.display import TABLE, as_json

# Okabe and Ito's palette, and others that differ from it.
COLORS = {
    "ink": "#222222",
    "muted": "#767676",
    "grey": "#929292",
    "faint": "#bfbfbf",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "vermilion": "#D55E00",
    "blue": "#0072B2",
    "purple": "#CC79A7",
    "green": "#009E73",
    "lilac": "#9C7DD6",
    "orchid": "#B5449E",
    "indigo": "#3B1C80",
    "wine": "#882255",
    "olive": "#999933",
    "brown": "#8C564B",
    "slate": "#5B6C7D",
    "moss": "#6F9F2A",
    "pine": "#005A3C",
    "teal": "#1B6F7A",
    "gold": "#B08A1C",
    "bronze": "#6B4E16",
    "plum": "#8E6C8A",
}


class _Look(NamedTuple):
    """How a series is drawn: its colour, its marks' shape, how thick they are, its line's style."""

    colour: str
    shape: str
    weight: float = 1
    line: str = "-"


# Models, classifiers and language models darker the larger they are, and other series with a look
# of their own. A method's colour stands where the method is entered, and is another.
LOOKS = {
    "MiniLM, 6 × 384": _Look("lilac", "o"),
    "MPNet, first 6 × 768": _Look("orchid", "s"),
    "MPNet, 12 × 768": _Look("indigo", "D"),
    "SmolLM2, 30 × 576": _Look("gold", "s"),
    "Gemma 3, 18 × 640": _Look("bronze", "^"),
    "the paper": _Look("muted", "^"),
    # The book's small model; a reader's own comes first, in ink.
    "this run": _Look("grey", "o", 0.8),
    "LRP around plain attention": _Look("plum", "X"),
    "half-removal": _Look("pine", "s"),
    "nine-pass map": _Look("moss", "D"),
    "own tokens, raw": _Look("slate", "o"),
    "all tokens, sum to one": _Look("grey", "s"),
    "top word, sure": _Look("ink", "o"),
    "top word, unsure": _Look("ink", "s", line="--"),
    "other words, sure": _Look("grey", "o"),
    "other words, unsure": _Look("grey", "s", line="--"),
}
# In the order in which methods are entered.
_SHAPES = "Dp^P<Xosv>hd*"
# Their hues are near AttnLRP's and CP-LRP's, above all on a dark page.
_DASHED = {"ig", "rollout"}
# Series without a look of their own, in the order of the figure.
_OTHERS = [_Look(*pair) for pair in zip(["ink", "teal", "slate", "grey"], "osD^", strict=True)]
# What a reader sees in the place of a name that stands in code.
NAMES = {
    "word": "word embeddings",
    "post-norm": "LayerNorm",
    "attention-mask": "attention mask",
    "mask": "[MASK]",
    "pad": "[PAD]",
    "unk": "[UNK]",
    "zero": "zero vector",
    "delete": "deletion",
    "default": "each method's own",
    "norm=held": "its mean held too",
    "head=gradient": "head: plain gradient",
    "activation=gradient": "GELU: plain gradient",
}
# Blue for negative, red for positive, white at zero. Both ends have one contrast on white, and keep
# their hue where a dark page turns lightness round: a deeper or bluer red would be pink there.
DIVERGING = LinearSegmentedColormap.from_list("signed", ["#3a86d0", "#ffffff", "#e65252"])
# Inches. On a phone a page's column is about 342 px wide: there 10 pt, the smallest type of any
# figure, are 9 px if the figure is no wider than this.
WIDTH = 5.1
_STYLE = {
    **sns.axes_style("ticks"),
    **dict.fromkeys(["font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"], 10),
    **dict.fromkeys(["axes.spines.top", "axes.spines.right"], False),
}
# The same figure gives the same bytes; text is drawn, so that no reader's fonts change its width.
_SVG = {"svg.hashsalt": "lrputils", "svg.fonttype": "path"}


class Drawing(Figure):
    """A figure that a notebook shows as SVG, under every backend, if a cell ends with it.

    Attributes:
        values: what is drawn, at full precision, which travels beside the picture; None if nothing
            was given.
    """

    values: pd.DataFrame | None = None

    def svg(self) -> str:
        """Return the figure as SVG on a white ground; the same figure gives the same text."""
        stream = io.StringIO()
        nothing = {"Date": None, "Creator": None}
        with rc_context(_SVG):
            self.savefig(stream, format="svg", dpi=200, facecolor="white", metadata=nothing)
        return stream.getvalue()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        shown = {"image/svg+xml": self.svg(), "text/plain": repr(self)}
        if self.values is not None:
            shown[TABLE] = as_json(self.values)
        display(shown, raw=True)

    def headline(self, text: str) -> None:
        """Set the figure's message above all panels, in as many lines as it needs."""
        lines = textwrap.fill(text, max(int(10 * self.get_figwidth()), 20))
        self.suptitle(lines, fontsize=11, fontweight="bold", x=0.01, ha="left")

    def legend_below(self, columns: int = 2) -> None:
        """Put one legend below all panels, each label once; none where nothing has a label."""
        found = {}
        for axes in self.axes:
            handles, labels = axes.get_legend_handles_labels()
            found |= dict(zip(labels, handles, strict=True))
        if found:
            place = {"loc": "outside lower center", "ncols": columns, "frameon": False}
            self.legend(found.values(), found.keys(), **place)


def new_figure(
    width: float = WIDTH,
    height: float = 3.2,
    *,
    title: str = "",
    rows: int = 1,
    columns: int = 1,
    **options: Any,
) -> tuple[Drawing, Any]:
    """Return `(figure, axes)` of this size in inches, unknown to pyplot, so that it shows once."""
    with rc_context(_STYLE):
        figure = Drawing(figsize=(width, height), layout="constrained")
        if title:
            figure.headline(title)
        return figure, figure.subplots(rows, columns, **options)


def looks(labels: Iterable[str]) -> dict[str, _Look]:
    """Return how a figure draws its series: label → look, no two of the same colour.

    A method has its own, also one that was entered a moment ago, in any colour of matplotlib; so
    have the labels in `LOOKS`. A method's settings ("Mask gradient, 2 groups") look as it does. The
    others take what is left, after four again from the first.
    """
    from lrputils.attribution import METHODS  # here, so that a figure of trees needs no torch

    methods = zip(METHODS.values(), cycle(_SHAPES), strict=False)
    own = {
        m.label.lower(): _Look(m.colour, shape, line="--" if m.name in _DASHED else "-")
        for m, shape in methods
        if m.colour
    }
    own |= LOOKS
    found = {}
    for label in labels:
        method = label.lower().partition(", ")[0]
        found[label] = own.get(label, own.get(label.lower(), own.get(method)))
    taken = {look.colour for look in found.values() if look}
    free = cycle([look for look in _OTHERS if look.colour not in taken])
    found = {label: look or next(free) for label, look in found.items()}
    return {
        n: look._replace(colour=COLORS.get(look.colour, look.colour)) for n, look in found.items()
    }
