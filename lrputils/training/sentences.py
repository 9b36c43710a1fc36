"""Texts divided into sentences, where a few words carry what a whole text would bury."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lrputils.data.texts import Texts

_BREAK = re.compile(r"(?:<br\s*/?>|\n)+")
_END = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["')\]]))\s+""")


def sentences_of(
    texts: Texts,
    *,
    min_words: int = 1,
    max_words: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
) -> Texts:
    """Return the sentences of texts, each once, without labels.

    A sentence ends at `.`, `!` or `?` before white space, and at a line break (also HTML's);
    abbreviations are not known.

    Args:
        texts: to divide.
        min_words: leave out sentences with fewer words (separated by blanks).
        max_words: leave out sentences with more words.
        limit: at most this many, the first ones.
        seed: shuffle before `limit` is applied; no shuffling if not given.

    Raises:
        ValueError: nothing is left.
    """
    most = np.inf if max_words is None else max_words
    found: dict[str, str] = {}
    for identifier, text in zip(texts.ids, texts, strict=True):
        for number, sentence in enumerate(_divided(text)):
            if min_words <= len(sentence.split()) <= most:
                found.setdefault(sentence, f"{identifier}.{number}")
    if not found:
        raise ValueError(
            f"{texts.name!r} has no sentence of {min_words} to {max_words or 'any number of'} words"
        )
    rows = np.arange(len(found))
    if seed is not None:
        rows = np.random.default_rng(seed).permutation(rows)
    everything = replace(texts, texts=tuple(found), labels=None, ids=tuple(found.values()))
    return everything.take(rows[:limit].tolist())


def _divided(text: str) -> Iterator[str]:
    for line in _BREAK.split(text):
        yield from (sentence.strip() for sentence in _END.split(line) if sentence.strip())
