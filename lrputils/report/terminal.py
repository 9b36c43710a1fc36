"""A heat map on a terminal: coloured words where colours are shown, else a table of the scores."""

from __future__ import annotations

import os
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from shutil import get_terminal_size
from typing import TextIO

import numpy as np

from lrputils.report.words import WordMaps, visible

_FOR, _AGAINST = (178, 24, 43), (33, 102, 172)
_FAINT = 0.05  # a share below it gets no colour
_LEGEND = (
    "{red} for the class, {blue} against it; the strongest colour is each map's own largest word"
)


def depth(stream: TextIO | None = None) -> int:
    """Return how many colours to write to a stream: 0, 256 or 2**24.

    None where it is no terminal, where `NO_COLOR` is set (no-color.org), or on a dumb one.
    """
    stream = stream or sys.stdout
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return 0
    return 2**24 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 256


def printed(shown: WordMaps, colours: int | None = None, width: int | None = None) -> str:
    """Return a heat map as text, for `colours` (0, 256 or 2**24) and `width` of the terminal."""
    colours = depth() if colours is None else colours
    width = width or get_terminal_size().columns
    lines = [*textwrap.wrap(visible(shown.caption), width), *textwrap.wrap(shown.remark, width)]
    for name in shown.maps:
        head = f"{visible(name)}  {shown.strongest(name)}"
        lines += ["", *textwrap.wrap(head, width)]
        if colours:
            lines += _coloured(shown, name, colours, width)
        lines += textwrap.wrap(visible(shown.notes.get(name, "")), width)
    if not colours:
        return "\n".join([*lines, "", _table(shown)])
    red, blue = _paint("red", 1.0, colours), _paint("blue", -1.0, colours)
    return "\n".join([*lines, "", _LEGEND.format(red=red, blue=blue)])


def _coloured(shown: WordMaps, name: str, colours: int, width: int) -> Iterator[str]:
    """The text in a map's colours, in lines of at most `width` columns where its words allow it."""
    line, used = "", 0
    for word, share in zip(shown.words, shown.shares(name), strict=True):
        text = visible(word.text)
        size = sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)
        if used and (word.opens or used + word.spaced + size > width):
            yield line
            line, used = "", 0
        space = " " if word.spaced and used else ""
        line += space + _paint(text, share, colours)
        used += len(space) + size
    yield line


def _paint(text: str, share: float, colours: int) -> str:
    """Colour the ground, with letters that stand out from it; underline what speaks against."""
    if abs(share) < _FAINT:
        return text
    full = np.array(_FOR if share > 0 else _AGAINST)
    ground = np.rint(255 + (full - 255) * abs(share)).astype(int)
    letters = 231 if abs(share) > 0.85 else 16  # white or black, whichever stands out
    if colours == 256:  # the cube of 6 × 6 × 6
        red, green, blue = np.rint(ground / 51).astype(int)
        code = f"48;5;{16 + 36 * red + 6 * green + blue}"
    else:
        code = "48;2;" + ";".join(map(str, ground))
    line = ";4" if share < 0 else ""
    return f"\x1b[38;5;{letters};{code}{line}m{text}\x1b[0m"


def _table(shown: WordMaps) -> str:
    """Every word's scores, for a file or another program."""
    table = shown.to_frame().set_index("word").rename(index=visible, columns=visible)
    return table.rename_axis(None).to_string(float_format="{:+.4g}".format)
