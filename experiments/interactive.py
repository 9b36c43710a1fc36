"""Figures that a reader changes: form controls over numbers that a chapter has computed.

Each output carries its numbers and the little JavaScript that draws them, so that it works in a
notebook and from a file, by keyboard, without a server. Where no script runs, a sentence stands in
its place that says where the still figure is. Numbers are rounded to three decimals; a map's scores
are shares of its largest word. Texts are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import products
from lrputils.report.words import visible

if TYPE_CHECKING:  # imported where they are needed, so that a figure of trees needs no torch
    from lrputils.model.classifier import Classifier
    from lrputils.study.evaluation import Evaluation

_HELD = Path(__file__).parent / "assets/interactive"


@dataclass
class _Interactive:
    """A figure with controls, shown as HTML by a notebook and in the book.

    `kind` is a function of `assets/interactive/widgets.js`, `data` what it draws, as JSON holds it;
    `name` is what it is called for those who do not see it; `still` stands in its place where no
    script runs.
    """

    kind: str
    name: str
    data: Mapping[str, Any]
    still: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        from lrputils.report.heatmap import STYLE

        style, script = (
            (_HELD / name).read_text("utf-8") for name in ("widgets.css", "widgets.js")
        )
        maps = f"<style>{STYLE}</style>" if "items" in self.data else ""
        page = (
            f'<div class="lrp-interactive" data-kind="{self.kind}" role="group" '
            f'aria-label="{escape(self.name)}">{maps}<style>{style}</style>'
            f'<p class="still">With JavaScript, {escape(self.still)}</p>'
            f'<script type="application/json">{_json(self.data)}</script>'
            f"<script>{script}</script></div>"
        )
        return {"text/html": page, "text/plain": f"Interactive figure: {self.name}"}


def _json(data: Any) -> str:
    """As JSON that no HTML parser reads as a tag, whatever the texts are."""
    plain = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c")


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Three decimals, None where there is no number, no negative zero."""
    return [round(float(v), 3) + 0.0 if np.isfinite(v) else None for v in values]


def product(values: Sequence[int], most: int = 5) -> _Interactive:
    """Let a reader bracket a product, change its factors, and watch relevance move.

    Products of three to `most` factors: the given values, then whole numbers that go on from them.
    """
    start = [*values[:most], *range(len(values) + 2, most + 2)]
    factors = {k: products.symbols(start[:k]) for k in range(3, most + 1)}
    trees = {
        k: [str(t).replace("*", "·") for t in products.bracketings(f)] for k, f in factors.items()
    }
    data = {"values": start, "low": min(-5, *start), "high": max(9, *start), "trees": trees}
    name = "Bracket a product and watch its relevance move"
    still = "brackets and factors can be chosen here; the figure above shows two bracketings."
    return _Interactive("product", name, data, still)


def heatmaps(
    classifier: Classifier,
    texts: Sequence[str],
    result: Evaluation,
    labels: Mapping[str, str],
    rows: Iterable[int],
    *,
    first: Sequence[str],
) -> _Interactive:
    """Let a reader stack maps of a text, each with its correlation with LOO.

    `labels`: method → how the figure calls it; `rows`: places of the texts that are offered;
    `first`: the methods that are shown at the start.
    """
    r = result.per_text("r")

    def item(row: int) -> dict[str, Any]:
        maps = {label: result.maps[name][row] for name, label in labels.items()}
        agreement = {label: r.loc[row, name] for name, label in labels.items() if name != "loo"}
        return _text(classifier, texts[row], maps, agreement)

    data = {"first": [labels[name] for name in first], "items": [*map(item, rows)]}
    still = "text and maps can be chosen here; the heat maps above show two texts."
    return _Interactive("heatmaps", "Maps of a text, stacked", data, still)


def removal(
    words: Sequence[str], falls: Sequence[float], maps: Mapping[str, Sequence[float]]
) -> _Interactive:
    """Let a reader take words away, and see how far the logit falls and what each map promised.

    `falls`: by how much the logit falls without each set of words, 2^words of them, the set with
    word i at the places whose bit i is set; `maps`: label → a score a word. At the start the two
    words are gone that the first map puts furthest from zero.

    Raises:
        ValueError: not as many falls as sets of words.
    """
    if len(falls) != 2 ** len(words):
        raise ValueError(f"{len(words)} words have {2 ** len(words)} sets, not {len(falls)}")
    scores = {label: _rounded(each) for label, each in maps.items()}
    strongest = np.argsort(-np.abs(next(iter(maps.values()))), kind="stable")[:2].tolist()
    data = {"words": [*map(visible, words)], "falls": _rounded(falls), "maps": scores}
    data["first"] = strongest
    still = "words can be taken away here; the heat map above shows each word's own score."
    return _Interactive("removal", "Take words away", data, still)


def _text(
    classifier: Classifier, text: Any, maps: Mapping[str, np.ndarray], r: Mapping[str, float]
) -> dict[str, Any]:
    """One text: its words, a space before those that have one, and each map's share by word."""
    from lrputils.data.given import sides
    from lrputils.report.heatmap import Heatmap

    length = len(next(iter(maps.values())))  # where it was cut, if it was
    shown = Heatmap.of(classifier, text, maps, max_length=length)
    held = {}
    for name in shown.maps:
        largest = float(np.abs(shown.by_word(name)).max()) or 1.0
        shares = _rounded(shown.shares(name))
        held[name] = {"largest": float(f"{largest:.6g}"), "shares": shares}
    words = " ".join(sides(text)).split()
    return {
        "title": " ".join(words[:7]) + " …" * (len(words) > 7),
        "caption": shown.caption,
        "words": [" " * word.spaced + visible(word.text) for word in shown.words],
        "maps": held,
        "r": dict(zip(r, _rounded(r.values()), strict=True)),
    }
