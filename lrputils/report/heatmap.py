"""Attribution maps over a text as HTML for people: whole words, in the text's own spelling.

A word's relevance is the sum over its pieces. Red speaks for the class; blue, dotted below,
against it. Each map is scaled by its own largest word, so that colours compare within a map, never
between maps. A word that is pointed at or tapped shows its score; a table under the maps holds all
of them. It needs no script, and every text is escaped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from lrputils.model.classifier import Classifier
from lrputils.model.readout import Target, read
from lrputils.report.display import TABLE

_STYLE = """<style>
.lrp-heatmap p { margin: 0 0 .3em; }
.lrp-heatmap .words { position: relative; margin-bottom: 1em; line-height: 1.8; }
.lrp-heatmap .words span, .lrp-heatmap .scale {
  border-radius: 3px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.lrp-heatmap .words span {
  --for: calc(max(0, var(--s)) * .55); --against: calc(max(0, -1 * var(--s)) * .55);
  padding: .1em .12em; border-bottom: 2px dotted rgb(33 102 172 / calc(1.8 * var(--against)));
  background: linear-gradient(rgb(178 24 43 / var(--for)) 0 0),
    linear-gradient(rgb(33 102 172 / var(--against)) 0 0); }
.lrp-heatmap .words span:hover::after, .lrp-heatmap .words span:focus::after {
  content: attr(data-score); position: absolute; left: 0; top: 100%; z-index: 9; max-width: 100%;
  padding: 0 .5em; border-radius: 3px; background: #222; color: #fff; font-size: .85em; }
.lrp-heatmap .scale { display: inline-block; width: 6em; height: .9em; vertical-align: -.1em;
  background: linear-gradient(to right, rgb(33 102 172 / .55), rgb(178 24 43 / 0) 50%,
    rgb(178 24 43 / .55)); }
.lrp-heatmap .scores { overflow: auto; max-height: 24em; }
.lrp-heatmap .scores td { text-align: right; white-space: nowrap; }
.lrp-heatmap .scores th { text-align: left; }
.lrp-heatmap .scores th.piece { padding-left: 1.5em; font-weight: normal; }
</style>"""

Writer = Callable[[float], str]


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        text: as the text spells it.
        pieces: its tokens, by position.
        spellings: the part of the text that each piece covers.
        spaced: whether a space stands before it.
    """

    text: str
    pieces: tuple[int, ...]
    spellings: tuple[str, ...]
    spaced: bool


class Heatmap:
    """One text under several maps; a notebook shows it as HTML.

    Args:
        tokens: the text's tokens.
        maps: name → one finite score a token, `(tokens,)`.
        words: how the tokens join; each is a word of its own if not given.
        caption: a line above the maps.

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
        self.caption = caption
        for name, scores in self.maps.items():
            if scores.shape != (len(self.tokens),):
                raise ValueError(
                    f"map {name!r} has shape {scores.shape}, but the text has "
                    f"{len(self.tokens)} tokens"
                )
            if not np.isfinite(scores).all():
                raise ValueError(f"map {name!r} holds a score that is not finite")
        alone = [Word(token, (place,), (token,), True) for place, token in enumerate(self.tokens)]
        self.words = alone if words is None else list(words)

    @classmethod
    def of(
        cls,
        classifier: Classifier,
        text: str,
        maps: Mapping[str, np.ndarray],
        *,
        target: Target = None,
        max_length: int | None = None,
    ) -> Heatmap:
        """Return the heat map of a text, its words joined and the explained class above.

        Args:
            classifier: the model that was explained.
            text: one text.
            maps: name → one score a token, special ones included, `(tokens,)`.
            target: the class that was explained; None is the predicted one.
            max_length: where the text was cut, in tokens; None if it was not.
        """
        cut = {"max_length": max_length} if max_length else {}
        inputs = classifier.encode([text], truncate=bool(cut), **cut)
        reading = read(classifier.architecture, inputs, target=target)
        chosen = int(reading.target)
        if classifier.architecture.language_model:
            name = repr(classifier.tokenizer.decode([chosen]))
        else:
            name = classifier.labels[chosen]
        share = float(reading.logits.softmax(-1)[0, chosen])
        caption = f"{'Predicted' if target is None else 'Class'}: {name}, probability {share:.2f}"
        words = None
        if classifier.tokenizer.is_fast:
            options = {"truncation": bool(cut), "return_offsets_mapping": True, "verbose": False}
            spans = classifier.tokenizer(text, **options, **cut)["offset_mapping"]
            special = inputs["special_tokens_mask"][0].tolist()
            pairs = zip(special, spans, strict=True)
            words = joined(text, [None if out else span for out, span in pairs], inputs.tokens[0])
        return cls(inputs.tokens[0], maps, words=words, caption=caption)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        columns = {name: scores.tolist() for name, scores in self.maps.items()}
        return {
            "text/html": self._html(),
            "text/plain": f"Heatmap of {len(self.words)} words: {', '.join(self.maps)}",
            TABLE: {"index": self.tokens, "columns": columns},
        }

    def _html(self) -> str:
        head = f"<p><b>{escape(self.caption)}</b></p>" if self.caption else ""
        # Each word's score in each map, and how the map's numbers are written.
        sums = {
            name: np.array([scores[list(word.pieces)].sum() for word in self.words])
            for name, scores in self.maps.items()
        }
        shown = {name: _format(scores, sums[name]) for name, scores in self.maps.items()}
        rows = "".join(self._row(name, sums[name], shown[name]) for name in self.maps)
        return f'<div class="lrp-heatmap">{_STYLE}{head}{rows}{_LEGEND}{self._table(shown)}</div>'

    def _row(self, name: str, sums: np.ndarray, shown: Writer) -> str:
        """One map: its name, its strongest words, and the text in its colours."""
        largest = np.abs(sums).max(initial=0.0) or 1.0
        spans = ""
        for word, score in zip(self.words, sums, strict=True):
            tip = f"{word.text} {shown(score)}"
            if len(word.pieces) > 1:
                parts = zip(word.spellings, self.maps[name][list(word.pieces)], strict=True)
                tip += " = " + ", ".join(f"{text} {shown(part)}" for text, part in parts)
            spans += " " * word.spaced + (
                f'<span tabindex="-1" style="--s:{score / largest:.2f}" '
                f'data-score="{escape(tip)}">{escape(word.text)}</span>'
            )
        # The word that speaks most for the class, and the one most against it, if any does.
        strongest = [
            f"most {side}: “{escape(self.words[place].text)}” {shown(sums[place])}"
            for side, sign in (("for", 1), ("against", -1))
            for place in np.argsort(-sign * sums, kind="stable")[:1]
            if sign * sums[place] > 0.01 * largest
        ]
        return (
            f"<p><b>{escape(name)}</b> <small>{'; '.join(strongest)}</small></p>"
            f'<p class="words" aria-hidden="true">{spans}</p>'
        )

    def _table(self, shown: Mapping[str, Writer]) -> str:
        """Every word's scores, and below a word of several pieces those of the pieces."""
        lines = ""
        for word in self.words:
            parts = [("", word.text, list(word.pieces))]
            if len(word.pieces) > 1:
                pairs = zip(word.spellings, word.pieces, strict=True)
                parts += [(' class="piece"', text, [place]) for text, place in pairs]
            for kind, text, places in parts:
                scores = [write(self.maps[name][places].sum()) for name, write in shown.items()]
                cells = "".join(f"<td>{score}</td>" for score in scores)
                lines += f'<tr><th scope="row"{kind}>{escape(text)}</th>{cells}</tr>'
        names = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.maps)
        return (
            "<details><summary>The score of every word and piece</summary>"
            '<div class="scores" tabindex="0" role="region" aria-label="scores of every word">'
            f'<table><thead><tr><th scope="col">word</th>{names}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div></details>"
        )


_LEGEND = (
    '<p><small>against the class <span class="scale" role="img" aria-label="blue to red"></span> '
    "for it; the strongest colour is each map's own largest word</small></p>"
)


def _format(*scores: np.ndarray) -> Writer:
    """How to write numbers of this size: signed, three digits of the largest."""
    largest = max((np.abs(some).max(initial=0.0) for some in scores), default=0.0)
    digits = int(np.clip(2 - np.floor(np.log10(largest or 1.0)), 0, 8))
    return lambda score: f"{score:+.{digits}f}".replace("-", "−")


def joined(text: str, spans: Sequence[tuple[int, int] | None], tokens: Sequence[str]) -> list[Word]:
    """Join a text's tokens into words, whatever tokenizer made them.

    Args:
        text: the text.
        spans: where each token stands in it, from a fast tokenizer's offsets; None for a special
            token, which is a word of its own.
        tokens: what to call the tokens that are not in the text.
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
