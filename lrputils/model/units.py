"""Units of a text: its words, its sentences, or spans of one's own, each a set of tokens.

What is removed or scored as one. Boundaries are found in the characters that were encoded, so they
do not depend on how a tokenizer cuts words into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

UNITS = ("token", "word", "sentence")
# A word is a run of letters and digits, with inner hyphens and apostrophes, or a run of other
# characters. A sentence ends behind . ! ? or … before a space, or at the end of a line: "Mr. Fox"
# is two. Spans of one's own are for those who know better.
_PATTERNS = {
    "word": re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]+"),
    "sentence": re.compile(r"[^\n]+?(?:[.!?…]+[\"')\]»”’]*(?=\s|$)|(?=\n|$))"),
}
Span = tuple[int, int]
Spans = Sequence[Sequence[Span]]


class Source(NamedTuple):
    """What a row was encoded from: the text, and the characters of each token in it.

    Of a pair `text` is both, a line each; special tokens have None in the place of a span.
    """

    text: str
    spans: tuple[Span | None, ...]


@dataclass(frozen=True)
class Units:
    """The units of a batch.

    Attributes:
        numbers: of the unit that each token belongs to, counted from 0 in each text, (batch,
            tokens); −1 at special tokens, at padding, and outside of one's own spans.
        texts: the characters of each unit, `texts[row][unit]`.
    """

    numbers: Tensor
    texts: tuple[tuple[str, ...], ...]

    @property
    def mask(self) -> Tensor:
        """Boolean (batch, tokens): true at the first token of each unit, where its score stands."""
        before = torch.nn.functional.pad(self.numbers[:, :-1], (1, 0), value=-1)
        return (self.numbers >= 0) & (self.numbers != before)

    def sum(self, scores: Tensor) -> Tensor:
        """Add up each unit's scores (…, batch, tokens) at its first token; 0 elsewhere."""
        columns = torch.arange(self.numbers.shape[1], device=self.numbers.device)
        first = torch.where(self.mask, columns, 0).cummax(1).values.to(scores.device)
        inside = scores.masked_fill((self.numbers < 0).to(scores.device), 0)
        return torch.zeros_like(scores).scatter_add(-1, first.expand_as(scores), inside)


def divide(
    sources: Sequence[Source], units: str | Spans, shape: tuple[int, int], device: torch.device
) -> Units:
    """Return the units of a batch of this shape (batch, tokens); see `Inputs.units`."""
    if isinstance(units, str):
        found = [[m.span() for m in _PATTERNS[units].finditer(one.text)] for one in sources]
    else:
        found = _own(sources, units)
    numbers = torch.full(shape, -1)
    texts = []
    for row, (source, spans) in enumerate(zip(sources, found, strict=True)):
        own = _numbers(source, spans)
        met = np.unique(own[own >= 0])
        if not isinstance(units, str) and len(met) < len(spans):
            lost = next(span for n, span in enumerate(spans) if n not in met)
            raise ValueError(
                f"the span {lost} of text {row}, {source.text[slice(*lost)]!r}, has no token of "
                "its own: no token begins in it, or the text was cut before"
            )
        numbers[row, : len(own)] = torch.from_numpy(
            np.where(own < 0, -1, np.searchsorted(met, own))
        )
        texts.append(tuple(source.text[slice(*spans[n])].strip() for n in met))
    return Units(numbers.to(device), tuple(texts))


def _numbers(source: Source, spans: Sequence[Span]) -> np.ndarray:
    """The number of the span in which each token begins, (tokens,); −1 for none.

    A token of spaces alone goes with the one behind it.
    """
    begins = [begin for begin, _ in spans]
    own, waiting = np.full(len(source.spans), -1), []
    for token, span in enumerate(source.spans):
        if span is None:
            continue
        written = source.text[slice(*span)]
        if not written.strip():
            waiting.append(token)
            continue
        place = span[0] + len(written) - len(written.lstrip())
        number = int(np.searchsorted(begins, place, side="right")) - 1
        number = number if number >= 0 and place < spans[number][1] else -1
        own[[*waiting, token]] = number
        waiting = []
    if waiting and len(source.spans) > len(waiting):
        own[waiting] = own.max()
    return own


def _own(sources: Sequence[Source], spans: Spans) -> list[list[Span]]:
    """The caller's spans, checked: one list a text, inside of it, and apart."""
    if len(spans) != len(sources):
        raise ValueError(f"units of {len(spans)} texts, but there are {len(sources)}: a list each")
    found = []
    for row, (source, own) in enumerate(zip(sources, spans, strict=True)):
        own = sorted((int(begin), int(end)) for begin, end in own)
        before = 0
        for begin, end in own:
            if not before <= begin < end <= len(source.text):
                raise ValueError(
                    f"the span {(begin, end)} of text {row} overlaps another, is empty, or leaves "
                    f"the text, which has {len(source.text)} characters"
                )
            before = end
        found.append(own)
    return found
