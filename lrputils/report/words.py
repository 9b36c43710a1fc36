"""Tokens joined to words in the text's own spelling, and words made safe to show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

_ENDLESS = re.compile(r"(\S{29})\S{3,}(\S{30})")


class Word(NamedTuple):
    """A word of a text, as the text spells it.

    `pieces`: its tokens, by position; `spellings`: the part of the text that each of them covers;
    `spaced`: whether a space stands before it.
    """

    text: str
    pieces: tuple[int, ...]
    spellings: tuple[str, ...]
    spaced: bool


def joined(text: str, spans: Sequence[tuple[int, int] | None], tokens: Sequence[str]) -> list[Word]:
    """Join a text's tokens into words, whatever tokenizer made them.

    `spans`: where each token stands in it, from a fast tokenizer's offsets; None for a special
    token, which is a word of its own. `tokens`: what to call those that are not in the text.
    """
    words: list[Word] = []
    first = end = None  # of the word at hand; None behind what is not in the text
    for place, span in enumerate(spans):
        start, stop = span or (0, 0)
        # Without white space at its ends: byte-level tokenizers count the space before.
        start += len(text[start:stop]) - len(text[start:stop].lstrip())
        stop = start + len(text[start:stop].strip())
        if start == stop:  # special, or white space alone
            name = tokens[place] if span is None else "␣"
            words.append(Word(name, (place,), (name,), True))
            end = None
        elif end is not None and (start < end or (start == end and _goes_on(text, start))):
            _, pieces, spellings, spaced = words.pop()
            end = max(end, stop)
            spellings = (*spellings, text[start:stop])
            words.append(Word(text[first:end], (*pieces, place), spellings, spaced))
        else:
            words.append(Word(text[start:stop], (place,), (text[start:stop],), start != end))
            first, end = start, stop
    return words


def _goes_on(text: str, place: int) -> bool:
    """Whether one word reaches across `place`: between letters, and at an apostrophe in a word."""
    around = text[place - 1 : place + 1]
    if around[1] in "'’":
        return _letters(around[0] + text[place + 1 : place + 2])
    if around[0] in "'’":
        return place > 1 and _letters(text[place - 2] + around[1])
    return _letters(around)


def _letters(pair: str) -> bool:
    """Whether both are letters, marks or digits of a script that puts spaces between words."""
    known = [unicodedata.category(c)[0] in "LMN" and not "\u2e80" <= c <= "\u9fff" for c in pair]
    return len(known) == 2 and all(known)


def visible(text: str) -> str:
    """Return `text` with the characters that nobody sees, or that rearrange others, written out.

    Controls (ESC among them), characters that turn the direction of writing, zero-width ones,
    lone surrogates and unassigned codes become ⟨200B⟩ and the like; white space becomes a blank. A
    joiner stays behind a character that is not ASCII: emoji and several scripts need it. What is
    longer than any word loses its middle.
    """
    shown = ""
    for character in _ENDLESS.sub("\\1…\\2", text):
        kind = unicodedata.category(character)
        if character.isspace():
            shown += " "
        elif kind[0] != "C" or (character in "\u200c\u200d" and not shown[-1:].isascii()):
            shown += character
        else:
            shown += f"⟨{ord(character):04X}⟩"
    return shown
