"""A heat map's words drawn as a picture, for what shows no HTML: an SVG or a PNG."""

from __future__ import annotations

import io
import textwrap
from functools import lru_cache
from warnings import catch_warnings, filterwarnings

from matplotlib import font_manager
from matplotlib.lines import Line2D
from matplotlib.textpath import TextToPath

from lrputils.report.figures.style import COLORS, Drawing
from lrputils.report.words import WordMaps, visible

_WIDTH, _MARGIN, _LINE, _SIZE = 7.0, 0.15, 0.26, 11  # inches, and points
_FOR, _AGAINST, _DEEPEST = "#b2182b", "#2166ac", 0.55  # the ink stays legible on the deepest
_FONT = "DejaVu Sans"  # comes with matplotlib
_LEGEND = "red: for the class; blue, dotted below: against it; each map has a scale of its own"
# Read by the viewer: the same file is light or dark.
_DARK = (
    "<style>@media (prefers-color-scheme: dark) {"
    f" [style*='fill: {COLORS['ink']}'] {{ fill: #e6e6e6 !important; }}"
    " [style*='fill: #ffffff'] { fill: #15181c !important; }"
    " [style*='stroke: #2166ac'] { stroke: #92c5de !important; } }</style>"
)


def picture(shown: WordMaps, kind: str) -> bytes:
    """Return the picture as ".svg", light or dark as the page around it, or as ".png" on white.

    A letter that no font of this machine has is a box with its number.
    """
    stream = io.BytesIO()
    with catch_warnings():
        filterwarnings("ignore", message="Glyph .* missing")
        figure = draw(shown)
        if kind == ".svg":
            head, defs, rest = figure.svg().partition("<defs>")
            return f"{head}{_DARK}{defs}{rest}".encode()
        figure.savefig(stream, format="png", dpi=200, facecolor="white")
    return stream.getvalue()


def draw(shown: WordMaps) -> Drawing:
    """Return a figure as high as the text needs: a caption, and for each map name, words, note."""
    figure = Drawing(figsize=(_WIDTH, 1.0))
    page = _Page(figure, _fonts(shown))
    page.paragraph(shown.caption, weight="bold")
    page.paragraph(shown.remark, size=10)
    for name in shown.maps:
        page.gap()
        page.paragraph(name, weight="bold")
        page.paragraph(shown.strongest(name), size=10)
        page.down += 0.05
        page.words(shown, name)
        page.down += 0.05
        page.paragraph(shown.notes.get(name, ""), size=10)
    page.gap()
    page.paragraph(_LEGEND, size=10)
    page.close()
    return figure


class _Page:
    """A column of lines, set from the top; what stands where is known when all are set."""

    def __init__(self, figure: Drawing, fonts: list[str]):
        self.figure, self.fonts, self.down = figure, fonts, _MARGIN
        self.artists: list = []

    def gap(self) -> None:
        self.down += _LINE / 2

    def paragraph(self, text: str, *, size: float = _SIZE, weight: str = "normal") -> None:
        if len(self.fonts) > 1:  # not every font is there in bold
            weight = "normal"
        for line in textwrap.wrap(visible(text), int(880 / size)):
            self.down += _LINE * size / _SIZE
            self._put(_MARGIN, line, size=size, weight=weight)

    def words(self, shown: WordMaps, name: str) -> None:
        self.down += _LINE
        across, space = _MARGIN, _width(" ", _SIZE, *self.fonts)
        for word, share in zip(shown.words, shown.shares(name), strict=True):
            text = visible(word.text)
            wide = _width(text, _SIZE, *self.fonts)
            across += space * word.spaced * (across > _MARGIN)
            if across > _MARGIN and (word.opens or across + wide > _WIDTH - _MARGIN):
                across, self.down = _MARGIN, self.down + 1.15 * _LINE
            self._put(across, text, size=_SIZE, share=share, wide=wide)
            across += wide

    def _put(self, across: float, text: str, *, share: float = 0.0, wide: float = 0.0, **font):
        ink = {"color": COLORS["ink"], "family": self.fonts, "parse_math": False, **font}
        artist = self.figure.text(0, 0, text, **ink)
        if share:
            colour = _FOR if share > 0 else _AGAINST
            ground = {"facecolor": colour, "alpha": _DEEPEST * abs(share), "linewidth": 0}
            artist.set_bbox({"boxstyle": "square,pad=0.12", **ground})
        self.artists.append((artist, across, self.down))
        if share < -0.05:
            below = Line2D([], [], color=_AGAINST, lw=1.4, ls=":", alpha=min(1, -2 * share))
            self.figure.add_artist(below)
            self.artists.append((below, (across, across + wide), self.down + 0.06))

    def close(self) -> None:
        height = self.down + _MARGIN
        self.figure.set_figheight(height)
        for artist, across, down in self.artists:
            up = 1 - down / height
            if isinstance(artist, Line2D):
                artist.set_data([x / _WIDTH for x in across], [up, up])
            else:
                artist.set_position((across / _WIDTH, up))


@lru_cache(maxsize=4096)
def _width(text: str, size: float, *fonts: str) -> float:
    """How wide a text is, in inches."""
    font = font_manager.FontProperties(family=list(fonts), size=size)
    wide, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return wide / 72


def _fonts(shown: WordMaps) -> list[str]:
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
