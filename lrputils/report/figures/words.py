"""A heat map's words drawn as a picture, for what shows no HTML: an SVG or a PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any
from warnings import catch_warnings, filterwarnings

from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, TextArea, VPacker
from matplotlib.textpath import TextToPath

from lrputils.report.figures.style import COLORS, Drawing
from lrputils.report.words import AGAINST, FOR, visible

_WIDTH, _MARGIN, _BLANK, _SIZE, _SMALL = 7.0, 11, 4, 11, 10  # inches, and points
_DEEPEST = 0.55  # the ink stays legible on the deepest
_FONT = "DejaVu Sans"  # comes with matplotlib
_LEGEND = "red: for the class; blue, dotted: against it; each map has a scale of its own"
# Read by the viewer: the same file is light or dark.
_DARK = (
    "<style>@media (prefers-color-scheme: dark) {"
    f" [style*='fill: {COLORS['ink']}'] {{ fill: #e6e6e6 !important; }}"
    " [style*='fill: #ffffff'] { fill: #15181c !important; }"
    " [style*='stroke: #2166ac'] { stroke: #92c5de !important; } }</style>"
)


def picture(shown: Any, kind: str) -> bytes:
    """Return a `Heatmap` as ".svg", light or dark as the page around it, or as ".png" on white.

    It is as high as the text needs: a caption, and for each map its name, words and note. A letter
    that no font of this machine has is a box with its number.
    """
    figure, stream = Drawing(figsize=(_WIDTH, 1.0)), io.BytesIO()
    with catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing")
        page = VPacker(children=list(_parts(shown)), pad=_MARGIN, sep=13, align="left")
        place = {"bbox_to_anchor": figure.bbox, "pad": 0, "borderpad": 0, "frameon": False}
        figure.add_artist(AnchoredOffsetbox("upper left", child=page, **place))
        height = page.get_bbox(FigureCanvasAgg(figure).get_renderer()).height
        figure.set_figheight(height / figure.dpi)
        if kind == ".svg":
            head, defs, rest = figure.svg().partition("<defs>")
            return f"{head}{_DARK}{defs}{rest}".encode()
        figure.savefig(stream, format="png", dpi=200, facecolor="white")
    return stream.getvalue()


def _parts(shown: Any) -> Iterator[VPacker]:
    """Everything from the top to the bottom: what stands above the maps, the maps, the legend."""
    fonts = _fonts(shown)
    look = {"color": COLORS["ink"], "family": fonts, "parse_math": False, "size": _SIZE}
    bold = look if len(fonts) > 1 else {**look, "weight": "bold"}  # not every font is there in bold
    looks = {"bold": bold, "small": {**look, "size": _SMALL, "linespacing": 1.5}}
    for block in [*shown.blocks(), [("small", _LEGEND)]]:
        parts: list[Any] = []
        for kind, text in block:
            if kind == "words":
                parts += _lines(shown, text, look)
            elif lines := textwrap.wrap(visible(text), 880 // looks[kind]["size"]):
                parts.append(TextArea("\n".join(lines), textprops=looks[kind]))
        if parts:
            yield VPacker(children=parts, pad=0, sep=6, align="left")


def _lines(shown: Any, name: str, look: dict[str, Any]) -> Iterator[HPacker]:
    """The text in a map's colours, in lines as wide as the picture."""
    size = partial(_points, family=look["family"])
    for line in shown.lines(name, 72 * _WIDTH - 2 * _MARGIN, size):
        row = []
        for text, share in line:
            colour = FOR if share > 0 else AGAINST
            ground = {"boxstyle": "square,pad=0.12", "linestyle": ":", "linewidth": 1.2}
            ground["facecolor"] = to_rgba(colour, _DEEPEST * abs(share))
            ground["edgecolor"] = to_rgba(colour, max(0, -share))
            word = TextArea(text.strip(), textprops={**look, "bbox": ground})
            row += [DrawingArea(_BLANK * text.startswith(" "), 0), word]
        yield HPacker(children=row, pad=2, sep=0, align="baseline")


def _points(text: str, family: list[str]) -> float:
    """How wide a word is, with the blank in front."""
    font = font_manager.FontProperties(family=family, size=_SIZE)
    wide, _, _ = TextToPath().get_text_width_height_descent(text.strip(), font, ismath=False)
    return wide + _BLANK * text.startswith(" ")


def _fonts(shown: Any) -> list[str]:
    """The default font, and those installed that have the letters which it lacks."""
    chosen = [_FONT]
    lacking = set("".join(visible(word.text) for word in shown.words))
    lacking = {ord(c) for c in lacking} - _letters(font_manager.findfont(_FONT))
    for entry in font_manager.fontManager.ttflist if lacking else ():
        if "Last Resort" in entry.name:  # it has every letter, as a box
            continue
        if found := lacking & _letters(entry.fname):
            chosen.append(entry.name)
            lacking -= found
    return chosen


def _letters(path: str) -> set[int]:
    return set(font_manager.get_font(path).get_charmap())
