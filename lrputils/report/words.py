"""The words of a text made safe to show, and maps over them; `lrputils.model.units` joins them.

What draws them, as HTML, on a terminal or as a picture, imports this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:  # torch is not imported for a character
    from lrputils.model.units import Word

FOR, AGAINST = "#b2182b", "#2166ac"  # as in assets/heatmap.css
_ENDLESS = re.compile(r"(\S{29})\S{3,}(\S{30})")


def visible(text: str) -> str:
    """Return `text` with the characters that nobody sees, or that rearrange others, written out.

    Controls (ESC among them), characters that turn the direction of writing, zero-width ones,
    lone surrogates and unassigned codes become ⟨200B⟩ and the like; white space becomes a blank. A
    joiner stays behind a character that is not ASCII: emoji and several scripts need it. What is
    longer than any word loses its middle.
    """
    shown = ""
    for character in _ENDLESS.sub("\\1…\\2", text):
        if character.isspace():
            shown += " "
        elif character.isprintable() or (character in "\u200c\u200d" and not shown[-1:].isascii()):
            shown += character
        else:
            shown += f"⟨{ord(character):04X}⟩"
    return shown


def named(words: Sequence[Word], place: int) -> str:
    """Return how a sentence names a word: in quotes, "(2 of 3)" behind one that occurs again."""
    text = words[place].text
    alike = [other for other, word in enumerate(words) if word.text.lower() == text.lower()]
    again = f" ({alike.index(place) + 1} of {len(alike)})" if len(alike) > 1 else ""
    return f"“{visible(text)}”{again}"


class WordMaps:
    """A text under several maps, word by word.

    Args:
        tokens: the text's tokens.
        maps: name → one finite score a token, `(tokens,)`.
        words: how the tokens join; each is a word of its own if not given.
        caption: a line above the maps.

    Attributes:
        notes: name → a sentence to stand under that map.
        unknown: places of the words that the tokenizer does not know, in whole or in part.
        special: places of the words that are not in the text, as [CLS]; no headline names them.
        measured: boolean (tokens,), False at tokens outside of all units that were scored.
        whole: whether a unit's tokens have no scores of their own, so that no piece has one.
        remark: a sentence about the text, to stand above the maps.
        writers: name → how that map's scores are written.
        of_answer: of each token of an answer its own map, by its name; a page shows what is chosen.

    Raises:
        ValueError: a map of another length, or with a score that is not finite.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        maps: Mapping[str, np.ndarray],
        *,
        words: Sequence[Word] | None = None,
        caption: str = "",
    ):
        self.tokens = list(tokens)
        self.maps = {name: np.asarray(scores, dtype=float) for name, scores in maps.items()}
        self.caption, self.notes = caption, {}
        self.unknown: frozenset[int] = frozenset()
        self.special: frozenset[int] = frozenset()
        self.remark = ""
        self.measured = np.ones(len(self.tokens), bool)
        self.whole = False
        self.of_answer: list[WordMaps] = []
        for name, scores in self.maps.items():
            if scores.shape != (len(self.tokens),):
                raise ValueError(
                    f"map {name!r} has shape {scores.shape}, but the text has "
                    f"{len(self.tokens)} tokens"
                )
            if not np.isfinite(scores).all():
                raise ValueError(f"map {name!r} holds a score that is not finite")
        from lrputils.model.units import Word  # here: it brings torch

        alone = [Word(token, (place,), (token,), True) for place, token in enumerate(self.tokens)]
        self.words = alone if words is None else list(words)
        self.writers = {name: _writer(own, self.by_word(name)) for name, own in self.maps.items()}

    def to_frame(self, *, pieces: bool = False) -> pd.DataFrame:
        """Return the scores: a row a word, `word` and a column a map.

        With `pieces` a row a token: `word`, the `piece` of the text that it covers, `token`, and
        the maps.
        """
        if not pieces:
            words = {"word": [word.text for word in self.words]}
            known = [self.measured[list(word.pieces)].any() for word in self.words]
            scores = {name: np.where(known, self.by_word(name), np.nan) for name in self.maps}
            return pd.DataFrame(words | scores)
        rows = [(word.text, piece) for word in self.words for piece in word.spellings]
        places = [place for word in self.words for place in word.pieces]
        frame = pd.DataFrame(rows, columns=["word", "piece"])
        frame["token"] = [self.tokens[place] for place in places]
        scores = {name: np.where(self.measured, own, np.nan) for name, own in self.maps.items()}
        return frame.assign(**{name: own[places] for name, own in scores.items()})

    def by_word(self, name: str) -> np.ndarray:
        """Return a map's score of every word, `(words,)`: the sum over its pieces."""
        return np.array([self.maps[name][list(word.pieces)].sum() for word in self.words])

    def shares(self, name: str) -> np.ndarray:
        """Return how strong each word's colour is in a map, `(words,)` in [−1, 1]."""
        sums = self.by_word(name)
        return sums / (np.abs(sums).max(initial=0.0) or 1.0)

    def strongest(self, name: str) -> str:
        """Name the word that speaks most for the class, and the one most against, if any does."""
        sums, shares = self.by_word(name), self.shares(name)
        own = np.array([place not in self.special for place in range(len(sums))])
        sums, shares = np.where(own, sums, 0.0), np.where(own, shares, 0.0)
        return "; ".join(
            f"most {side}: {named(self.words, place)} {self.writers[name](sums[place])}"
            for side, sign in (("for", 1), ("against", -1))
            for place in np.argsort(-sign * sums, kind="stable")[:1]
            if sign * shares[place] > 0.01
        )

    def blocks(self) -> Iterator[list[tuple[str, str]]]:
        """Yield what stands together, from the top to the bottom, for who draws no HTML.

        Each part is a pair: "bold" or "small" and a text, or "words" and the name of a map.
        """
        yield [("bold", self.caption), ("small", self.remark)]
        for name in self.maps:
            head = [("bold", name), ("small", self.strongest(name))]
            yield [*head, ("words", name), ("small", self.notes.get(name, ""))]

    def lines(
        self, name: str, room: float, size: Callable[[str], float]
    ) -> Iterator[list[tuple[str, float]]]:
        """Yield the text in lines that fit into `room`: each word, blank before, and its share.

        `size` says how much of the room a text takes.
        """
        line, left = [], room
        for word, share in zip(self.words, self.shares(name), strict=True):
            text = " " * word.spaced + visible(word.text)
            wide = size(text)
            if line and (word.opens or wide > left):
                yield line
                line, left = [], room
            line.append((text if line else text.lstrip(), share))
            left -= wide
        yield line

    def parts(self, word: Word) -> list[tuple[str, list[int]]]:
        """Return a word and, if it has several pieces, each: its text, and its tokens' places."""
        pieces = zip(word.spellings, ([place] for place in word.pieces), strict=True)
        several = len(word.pieces) > 1 and not self.whole
        return [(word.text, list(word.pieces)), *(pieces if several else ())]

    def written(self, name: str, pieces: list[int]) -> str:
        """Return the score of some tokens in a map as it is written; a dash where it has none."""
        if not self.measured[pieces].any():
            return "–"
        return self.writers[name](self.maps[name][pieces].sum())


def _writer(*scores: np.ndarray) -> Callable[[float], str]:
    """Return how to write numbers of this size: signed, three digits of the largest."""
    largest = max(np.abs(some).max(initial=0.0) for some in scores) or 1.0
    digits = int(np.clip(2 - np.floor(np.log10(largest)), 0, 8))
    return lambda score: f"{score:+.{digits}f}".replace("-", "−")
