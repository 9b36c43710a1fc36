"""Units of a text: its words, its sentences, or spans of one's own, each a set of tokens.

What is removed or scored as one. Boundaries are found in the characters that were encoded, so they
do not depend on how a tokenizer cuts words into pieces.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

import pandas as pd
import regex
import torch
from torch import Tensor

from lrputils.mistakes import about

UNITS = ("token", "word", "sentence", "message")
# Behind . ! ? or … before a space, or at the end of a line: "Mr. Fox" is two. Spans of one's own
# are for those who know better.
_SENTENCE = re.compile(r"[^\n]+?(?:[.!?…]+[\"')\]»”’]*(?=\s|$)|(?=\n|$))")
# Letters, marks and digits of a script that puts spaces between words, and apostrophes inside.
_LETTERS = r"(?:(?![\u2e80-\u9fff])[\p{L}\p{M}\p{N}])+"
_WORD = regex.compile(rf"{_LETTERS}(?:['’]{_LETTERS})*")
_INK = re.compile(r"\S")
Span = tuple[int, int]
Spans = Sequence[Sequence[Span]]


def check_units(units: str | Spans) -> str | Spans:
    """Return a kind of units, or spans, of whatever sequences, as lists of pairs of numbers.

    Raises:
        ValueError: no such kind, or no such spans.
    """
    try:
        if isinstance(units, str):
            return UNITS[UNITS.index(units)]
        return [[(int(begin), int(end)) for begin, end in text] for text in units]
    except (TypeError, ValueError):
        close = get_close_matches(str(units), UNITS, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        known = f" is not one of {UNITS}, nor spans of characters, for each text [(begin, end), …]"
        raise ValueError(about("units", units) + known + hint) from None


class Source(NamedTuple):
    """What a row was encoded from: the text, and the characters of each token in it.

    Of a pair or a chat `text` is all of its parts, one behind the other, a line break between two,
    and `parts` where each stands; special tokens have None in the place of a span.
    """

    text: str
    spans: tuple[Span | None, ...]
    parts: tuple[Span, ...] = ()

    def openings(self) -> set[int]:
        """Return the tokens that begin a part, but the first."""
        begins = [begin for begin, _ in self.parts[1:]]
        owners = [span and bisect_right(begins, span[0]) for span in self.spans]
        return {owners.index(number) for number in {*owners} if number}


class Word(NamedTuple):
    """A word of a text, as the text spells it.

    `pieces`: its tokens, by position; `spellings`: the part of the text that each of them covers;
    `spaced`: whether a space stands before it; `opens`: whether the second text of a pair, or a
    further message of a chat, begins with it, on a line of its own.
    """

    text: str
    pieces: tuple[int, ...]
    spellings: tuple[str, ...]
    spaced: bool
    opens: bool = False


def joined(text: str, spans: Sequence[Span | None], tokens: Sequence[str]) -> list[Word]:
    """Join a text's tokens into words, whatever tokenizer made them.

    `spans`: where each token stands in it, from a fast tokenizer's offsets; None for a special
    token, which is a word of its own. `tokens`: what to call those that are not in the text.
    """
    words: list[Word] = []
    inside = {place for word in _WORD.finditer(text) for place in range(*word.span())[1:]}
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
        elif end is not None and (start < end or (start == end and start in inside)):
            word, end = words[-1], max(end, stop)
            spellings = (*word.spellings, text[start:stop])
            words[-1] = Word(text[first:end], (*word.pieces, place), spellings, word.spaced)
        else:
            words.append(Word(text[start:stop], (place,), (text[start:stop],), start != end))
            first, end = start, stop
    return words


@dataclass(frozen=True)
class Units:
    """The units of a batch.

    Attributes:
        numbers: of the unit that each token belongs to, counted from 0 in each text, (batch,
            tokens); −1 at special tokens, at padding, and outside of one's own spans.
        first: the column of the first token of each token's unit, (batch, tokens). A unit need not
            be one piece: a span over both texts of a pair has a separator inside.
        texts: the characters of each unit, `texts[row][unit]`.
    """

    numbers: Tensor
    first: Tensor
    texts: tuple[tuple[str, ...], ...]

    @property
    def mask(self) -> Tensor:
        """Boolean (batch, tokens): true at the first token of each unit, where its score stands."""
        columns = torch.arange(self.numbers.shape[1], device=self.numbers.device)
        return (self.numbers >= 0) & (self.first == columns)

    def sum(self, scores: Tensor) -> Tensor:
        """Add up each unit's scores (…, batch, tokens) at its first token; 0 elsewhere."""
        inside = scores.masked_fill((self.numbers < 0).to(scores.device), 0)
        first = self.first.to(scores.device).expand_as(scores)
        return torch.zeros_like(scores).scatter_add(-1, first, inside)


def divide(
    sources: Sequence[Source], units: str | Spans, shape: tuple[int, int], device: torch.device
) -> Units:
    """Return the units of a batch of this shape (batch, tokens); see `Inputs.units`."""
    own = not isinstance(units, str)
    if own and len(units) != len(sources):
        raise ValueError(f"units of {len(units)} texts, but there are {len(sources)}: a list each")
    numbers, first, texts = torch.full(shape, -1), torch.zeros(shape, dtype=torch.long), []
    for row, source in enumerate(sources):
        words = words_of(source, _checked(source, units[row], row) if own else units)
        for number, word in enumerate(words):
            numbers[row, list(word.pieces)] = number
            first[row, list(word.pieces)] = word.pieces[0]
        texts.append(tuple(word.text for word in words))
    return Units(numbers.to(device), first.to(device), tuple(texts))


def words_of(source: Source, units: str | Sequence[Span]) -> list[Word]:
    """Return the units of a text, each as one word: those of a name in `UNITS`, or these spans."""
    text = source.text
    if units == "word":
        words = joined(text, source.spans, [""] * len(source.spans))
        return [word for word in words if source.spans[word.pieces[0]] is not None]
    spans = units
    if units == "sentence":
        spans = [m.span() for m in _SENTENCE.finditer(text)]
    elif units == "message":
        spans = source.parts or ((0, len(text)),)
    begins = [begin for begin, _ in spans]
    pieces: dict[Span, list[int]] = {}
    for token, place in _places(source).items():
        number = bisect_right(begins, place) - 1
        if number >= 0 and place < spans[number][1]:
            pieces.setdefault(spans[number], []).append(token)
    if not isinstance(units, str):  # whole tokens go: a span that ends inside of one has all of it
        pieces = {_covered(source, own): own for own in pieces.values()}
    return [
        Word(
            text[slice(*span)].strip(),
            tuple(own),
            tuple(text[slice(*source.spans[piece])] for piece in own),
            True,
        )
        for span, own in pieces.items()
    ]


def narrowed(source: Source, scores: Sequence[float], most: int = 3) -> list[Span]:
    """Return the words of the sentences that count, and each other sentence whole, as spans.

    Args:
        source: of a text.
        scores: of its sentences, at their first tokens, (tokens,).
        most: how many sentences count: those with the largest scores, whatever their signs.
    """
    sentences = words_of(source, "sentence")
    order = sorted(sentences, key=lambda sentence: -abs(scores[sentence.pieces[0]]))
    inside = {piece for sentence in order[:most] for piece in sentence.pieces}
    words = [word for word in words_of(source, "word") if inside.issuperset(word.pieces)]
    return sorted(_covered(source, unit.pieces) for unit in (*words, *order[most:]))


def _covered(source: Source, tokens: Sequence[int]) -> Span:
    """The characters from the first of some tokens to the last."""
    spans = [span for token in tokens if (span := source.spans[token]) is not None]
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def _places(source: Source) -> dict[int, int]:
    """Where each token begins, behind spaces; one of spaces alone goes with the token behind it."""
    tokens = {token: span for token, span in enumerate(source.spans) if span is not None}
    inked = {token: _INK.search(source.text, *span) for token, span in tokens.items()}
    starts = pd.Series({token: ink and ink.start() for token, ink in inked.items()}, dtype=float)
    return starts.bfill().ffill().fillna(-1).astype(int).to_dict()


def _checked(source: Source, spans: Sequence[Span], row: int) -> list[Span]:
    """The caller's spans of a text, in order: inside of it, apart, and with tokens of their own."""
    spans = sorted(spans)
    places, before = _places(source).values(), 0
    for begin, end in spans:
        if not before <= begin < end <= len(source.text):
            raise ValueError(
                f"the span {(begin, end)} of text {row} overlaps another, is empty, or leaves "
                f"the text, which has {len(source.text)} characters"
            )
        if not any(begin <= place < end for place in places):
            raise ValueError(
                f"the span {(begin, end)} of text {row}, {source.text[begin:end]!r}, has no token "
                "of its own: no token begins in it, or the text was cut before"
            )
        before = end
    return spans
