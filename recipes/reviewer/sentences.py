"""Texts divided into sentences, where a few words carry what a whole text would bury."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

_BREAK = re.compile(r"(?:<br\s*/?>|\n)+")
_END = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["')\]]))\s+""")


def sentences_of(
    texts: Iterable[str], min_words: int, max_words: int, limit: int, seed: int
) -> list[str]:
    """Return at most `limit` sentences of the texts, each once, chosen by chance.

    A sentence ends at `.`, `!` or `?` before white space, and at a line break (also HTML's);
    abbreviations are not known. The first n of them do not depend on `limit`.

    Raises:
        ValueError: no sentence has from `min_words` to `max_words` words.
    """
    found = dict.fromkeys(
        sentence
        for text in texts
        for sentence in _divided(text)
        if min_words <= len(sentence.split()) <= max_words
    )
    if not found:
        raise ValueError(f"the texts have no sentence of {min_words} to {max_words} words")
    sentences = list(found)
    order = np.random.default_rng(seed).permutation(len(sentences))
    return [sentences[row] for row in order[:limit]]


def _divided(text: str) -> Iterator[str]:
    for line in _BREAK.split(text):
        yield from (sentence.strip() for sentence in _END.split(line) if sentence.strip())
