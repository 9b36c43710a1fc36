"""Attribution maps over a text as a page for people: whole words, in the text's own spelling.

A word's relevance is the sum over its pieces. Red speaks for the class; blue, dotted below,
against it. Each map is scaled by its own largest word, so that colours compare within a map, never
between maps. A word that is pointed at or tapped shows its score; a table under the maps holds all
of them. It needs no script, every text is escaped, and no character of it is invisible or
rearranges others. On a terminal the words are coloured where colours are shown, else it is a table
of the scores; `report/figures/words.py` draws the picture.
"""

from __future__ import annotations

import math
import os
import re
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from lrputils import __version__
from lrputils.data.given import Exchange, Text
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import ANSWER_OUTPUTS, Reading, Target, probabilities, read
from lrputils.model.units import Spans, Word, joined, words_of
from lrputils.report.display import TABLE
from lrputils.report.words import AGAINST, FOR, visible
from lrputils.runs.folders import atomic_write, writable

_ASSETS = Path(__file__).parents[1] / "assets"
STYLE = (_ASSETS / "heatmap.css").read_text(encoding="ascii")
FILES = ".html", ".svg", ".png"
_FAINT = 0.05  # on a terminal a share below it gets no colour


class Heatmap:
    """One text under several maps; a notebook shows it, a prompt prints it, `save` writes it.

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
        answer: the explained class and its probability, None where there is none.
        origin: the model.

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
        self.of_answer: list[Heatmap] = []
        self.answer: tuple[str, float | None] = ("", None)
        self.origin = ""
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

    @classmethod
    def of(
        cls,
        classifier: Classifier,
        text: Text,
        maps: Mapping[str, np.ndarray],
        *,
        target: Target = None,
        units: str | Spans = "token",
        max_length: int | None = None,
        answer: str | None = None,
    ) -> Heatmap:
        """Return the heat map of a text, its words joined and what is explained above.

        `maps`: name → one score a token, special ones included, `(tokens,)`; a `target` of None is
        the predicted class; `units`: what a score stands for (words are shown in any case, and
        sentences or spans as one); `max_length`: where the text was cut, in tokens, if it was;
        `answer`: what a language model says to it, if that is explained.
        """
        if isinstance(text, Exchange):
            text, answer = text.prompt, text.answer
        inputs = classifier.encode([text], max_length, truncate=bool(max_length), answer=answer)
        reading = read(classifier.architecture, inputs, target=target)
        value = float(reading.output.detach())
        if answer is None:
            label, probability = _answer(classifier, reading)
        else:
            output = ANSWER_OUTPUTS[int(reading.target[0])]
            likely = math.exp(value) if output == ANSWER_OUTPUTS[0] else None
            label, probability = answer, likely
        caption = f"{label}: {value:+.2f}"
        if answer is not None:
            caption = f"Answer “{answer}”: {output} {value:+.2f}"
        elif probability is not None:
            said = "Predicted" if target is None else "Class"
            several = classifier.model.config.problem_type == "multi_label_classification"
            said = "Most probable label" if several and target is None else said
            caption = f"{said}: {label}, probability {_probability(probability)}"
        elif reading.target.dim() == 2:
            caption = f"{label}: logits differ by {value:+.2f}"
        found = cls(inputs.tokens[0], maps, words=_words(inputs, units), caption=caption)
        content = inputs.content_mask[0]
        unknown = content & (inputs["input_ids"][0] == inputs.replacements.get("unk", -1))
        if units != "token" and inputs.sources:
            found.measured, found.whole = (inputs.units(units).numbers[0] >= 0).cpu().numpy(), True
        pieces = [list(word.pieces) for word in found.words]
        found.answer, found.origin = (label, probability), f"Model {classifier.name}"
        if classifier.revision:
            found.origin += f", revision {classifier.revision}"
        precision = str(reading.output.dtype).removeprefix("torch.")
        if precision in ("float16", "bfloat16"):
            found.origin += f", computed in {precision}"
        if classifier.prompt is not None:
            found.origin += f", asked “{classifier.prompt.template}”"
        found.special = frozenset(n for n, own in enumerate(pieces) if not content[own].any())
        found.unknown = frozenset(n for n, own in enumerate(pieces) if unknown[own].any())
        if found.unknown:
            words = sum(bool(content[own].any()) for own in pieces)
            some = ", ".join(named(found.words, place) for place in sorted(found.unknown)[:3])
            more = ", …" if len(found.unknown) > 3 else ""
            found.remark = (
                f"The tokenizer does not know {len(found.unknown)} of {words} words "
                f"({some}{more}): in the place of each the model reads the same [UNK]."
            )
        return found

    def save(self, path: str | Path) -> Path:
        """Write the heat map to a file, whole or not at all; return its path.

        `.html` is a page of its own, for any script; `.svg` and `.png` are drawn from left to right
        with this machine's fonts. `.html` and `.svg` are dark where the reader's pages are.
        ValueError for another ending, OSError for a folder that is not there, or cannot be written
        to.
        """
        return _save([self], path)

    def __str__(self) -> str:
        dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"  # no-color.org
        coloured, width = sys.stdout.isatty() and not dumb, get_terminal_size().columns
        lines = []
        for block in self.blocks():
            for kind, text in block:
                if kind != "words":
                    lines += textwrap.wrap(visible(text), width)
                elif coloured:
                    for line in self.lines(text, width, _columns):
                        lines.append("".join(_paint(*word) for word in line))
            lines.append("")
        if coloured:
            red, blue = _paint("red", 1.0), _paint("blue", -1.0)
            scales = "the strongest colour is each map's own largest word"
            lines.append(f"{red} for the class, {blue} against it; {scales}")
        else:  # for a file or another program
            table = self.to_frame().set_index("word").rename(index=visible, columns=visible)
            lines.append(
                table.rename_axis(None).to_string(float_format="{:+.3f}".format, na_rep="–")
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        columns = {name: scores.tolist() for name, scores in self.maps.items()}
        return {
            "text/html": str(_parts().figure(self, STYLE)),
            "text/plain": f"Heatmap of {len(self.words)} words: {', '.join(self.maps)}",
            TABLE: {"index": self.tokens, "columns": columns},
        }


class Heatmaps(list[Heatmap]):
    """The heat maps of several texts, shown one below the other."""

    def to_frame(self, *, pieces: bool = False) -> pd.DataFrame:
        """Return the scores of all: `text` (its number), `class` and `probability`, and the rest.

        The rest is of `Heatmap.to_frame`: a row a word, or with `pieces` a row a token.
        """
        parts = []
        for number, shown in enumerate(self):
            label, probability = shown.answer
            told = {"text": number, "class": label, "probability": probability}
            parts.append(shown.to_frame(pieces=pieces))
            for place, (name, value) in enumerate(told.items()):
                parts[-1].insert(place, name, value)
        return pd.concat(parts, ignore_index=True)

    def save(self, path: str | Path) -> Path:
        """Write all into one page, an `.html` file; one alone as `Heatmap.save`."""
        return _save(self, path)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "".join(str(_parts().figure(shown, STYLE)) for shown in self)


def named(words: Sequence[Word], place: int) -> str:
    """Return how a sentence names a word: in quotes, "(2 of 3)" behind one that occurs again."""
    text = words[place].text
    alike = [other for other, word in enumerate(words) if word.text.lower() == text.lower()]
    again = f" ({alike.index(place) + 1} of {len(alike)})" if len(alike) > 1 else ""
    return f"“{visible(text)}”{again}"


def check_place(path: str | Path) -> Path:
    """Return a path to which a heat map can be saved, before anything is computed for it.

    Raises:
        ValueError: an ending that is none of `FILES`.
        OSError: its folder is not there or closed to writing, or it is a folder itself.
    """
    path = Path(path)
    if path.suffix.lower() not in FILES:
        raise ValueError(f"a heat map is saved as {', '.join(FILES)}, not as {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder")
    writable(path.parent.absolute())
    return path


def _save(maps: list[Heatmap], path: str | Path) -> Path:
    path = check_place(path)
    kind = path.suffix.lower()
    if kind == ".html":
        content = _parts().page(maps, STYLE, __version__).encode()
    elif len(maps) > 1:
        raise ValueError(f"several heat maps are saved as .html, not as {path.name!r}")
    else:
        from lrputils.report.figures.words import picture  # a page needs no matplotlib

        content = picture(maps[0], kind)
    with atomic_write(path) as partial:
        partial.write_bytes(content)
    return path


@cache
def _parts() -> Any:
    """The parts of the template, which are functions."""
    return templates().get_template("heatmap.html").module


def templates(**filters: Callable[[Any], Any]) -> jinja2.Environment:
    """Return what fills in pages: it escapes all; `visible` writes out what would hide."""
    loader = jinja2.FileSystemLoader(_ASSETS)
    found = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    found.filters |= {"visible": visible, "told": _told, **filters}
    found.globals["zip"] = zip
    return found


def _told(sentence: str) -> Markup:
    """A sentence in which a word that runs from right to left moves nothing around it."""
    # A word may hold a quotation mark itself: what is quoted ends where a blank or a stop follows.
    quoted = r"“(.+?)”(?=[\s.,;)]|$)"
    return Markup(re.sub(quoted, r"“<bdi>\1</bdi>”", str(escape(visible(sentence)))))


def _words(inputs: Inputs, units: str | Spans) -> list[Word] | None:
    """The words of a text that was encoded, units longer than a word as one; None if unknown."""
    if not inputs.sources:
        return None
    source = inputs.sources[0]
    words = joined(source.text, source.spans, inputs.tokens[0])
    if units not in ("token", "word"):
        longer = words_of(source, units if isinstance(units, str) else units[0])
        unit_of = {piece: unit for unit in longer for piece in unit.pieces}
        words = list(dict.fromkeys(unit_of.get(word.pieces[0], word) for word in words))
    opening = source.openings()
    return [word._replace(opens=not opening.isdisjoint(word.pieces)) for word in words]


def _answer(classifier: Classifier, reading: Reading) -> tuple[str, float | None]:
    """Name the class, the two of a contrast, or the next token; its probability if it has one."""
    chosen = [max(each, -1 - each) for each in reading.target[0].reshape(-1).tolist()]
    if classifier.architecture.language_model:
        names = [repr(classifier.tokenizer.decode([each])) for each in chosen]
    else:
        names = [str(classifier.labels[each]) for each in chosen]
    if len(names) == 2:
        return " against ".join(names), None
    try:
        return names[0], float(probabilities(classifier.model, reading.logits[:1])[0, chosen[0]])
    except ValueError:  # a lone logit names no class, unless someone named it
        return ("score" if names[0] == "LABEL_0" else names[0]), None


def _probability(value: float) -> str:
    """A probability in two digits; none is rounded to 0 or 1."""
    return "below 0.01" if value < 0.005 else "above 0.99" if value > 0.995 else f"{value:.2f}"


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


def _paint(text: str, share: float) -> str:
    """Colour the ground, with letters that stand out from it; underline what speaks against.

    In 256 colours, a cube of 6 × 6 × 6 and grays; a blank in front has none.
    """
    if abs(share) < _FAINT:
        return text
    full = np.array([*bytes.fromhex((FOR if share > 0 else AGAINST)[1:])])
    ground = np.rint((255 + (full - 255) * abs(share)) / 51).astype(int)
    letters = 231 if abs(share) > 0.85 else 16  # white or black, whichever stands out
    line, word = ";4" if share < 0 else "", text.lstrip(" ")
    code = f"38;5;{letters};48;5;{16 + ground @ [36, 6, 1]}{line}"
    return f"{text.removesuffix(word)}\x1b[{code}m{word}\x1b[0m"


def _writer(*scores: np.ndarray) -> Callable[[float], str]:
    """Return how to write numbers of this size: signed, three digits of the largest."""
    largest = max(np.abs(some).max(initial=0.0) for some in scores) or 1.0
    digits = int(np.clip(2 - np.floor(np.log10(largest)), 0, 8))
    return lambda score: f"{score:+.{digits}f}".replace("-", "−")
