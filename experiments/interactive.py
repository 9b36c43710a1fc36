"""Figures that a reader changes: form controls over numbers that a chapter has computed.

Each output carries its numbers and the little JavaScript that draws them, so that it works in a
notebook and from a file, by keyboard, without a server. Where no script runs, a sentence stands in
its place that says where the still figure is. Numbers are rounded to three decimals. Texts are
escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from experiments import products
from lrputils.report.words import visible

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
        style, script = (
            (_HELD / name).read_text("utf-8") for name in ("widgets.css", "widgets.js")
        )
        page = (
            f'<div class="lrp-interactive" data-kind="{self.kind}" role="group" '
            f'aria-label="{escape(self.name)}"><style>{style}</style>'
            f'<p class="still">With JavaScript, {escape(self.still)}</p>'
            f'<script type="application/json">{_json(self.data)}</script>'
            f"<script>{script}</script></div>"
        )
        return {"text/html": page, "text/plain": f"Interactive figure: {self.name}"}


def _json(data: Any) -> str:
    """As JSON that no HTML parser reads as a tag, whatever the texts are."""
    plain = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return plain.replace("<", "\\u003c")


def _rounded(values: Iterable[float]) -> list[float]:
    """Three decimals, no negative zero."""
    return [round(float(value), 3) + 0.0 for value in values]


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


def removal(
    words: Sequence[str], falls: Sequence[float], maps: Mapping[str, Sequence[float]]
) -> _Interactive:
    """Let a reader take words away, and see how far the logit falls and what each map promised.

    `falls`: by how much the logit falls without each set of words, 2^words of them, the set with
    word i at the places whose bit i is set; `maps`: label → a score a word; all in logits. At the
    start the word is gone that the first map puts furthest from zero.

    Raises:
        ValueError: not as many falls as sets of words.
    """
    if len(falls) != 2 ** len(words):
        raise ValueError(f"{len(words)} words have {2 ** len(words)} sets, not {len(falls)}")
    scores = {label: _rounded(each) for label, each in maps.items()}
    first = int(np.argmax(np.abs(next(iter(maps.values())))))
    data = {"words": [*map(visible, words)], "falls": _rounded(falls), "maps": scores}
    data["first"] = first
    still = "words can be taken away here; the heat map above shows each word's own score."
    return _Interactive("removal", "Take words away", data, still)
