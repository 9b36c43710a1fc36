"""Attribution maps over a text, as HTML that wraps on a phone and needs no script.

Red raises the class, blue lowers it. Each map is scaled by its own largest absolute score, so that
colours compare within a map, never between maps. Token texts are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from lrputils.display import TABLE

_RAISES, _LOWERS = "178,24,43", "33,102,172"
_TOKEN = "padding:1px 3px;margin:1px;border-radius:3px;display:inline-block;color:#111"


class Heatmap:
    """One text under several maps; a notebook shows it as HTML."""

    def __init__(self, tokens: Sequence[str], maps: Mapping[str, np.ndarray], caption: str = ""):
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

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, object]:
        columns = {name: scores.tolist() for name, scores in self.maps.items()}
        return {
            "text/html": self._html(),
            "text/plain": f"Heatmap of {len(self.tokens)} tokens: {', '.join(self.maps)}",
            TABLE: {"index": self.tokens, "columns": columns},
        }

    def _html(self) -> str:
        head = f"<p>{escape(self.caption)}</p>" if self.caption else ""
        rows = "".join(self._row(name, scores) for name, scores in self.maps.items())
        return f'<div class="lrp-heatmap">{head}{rows}</div>'

    def _row(self, name: str, scores: np.ndarray) -> str:
        largest = np.abs(scores).max(initial=0.0) or 1.0
        spans = "".join(map(_span, self.tokens, scores / largest, scores))
        return f'<div style="margin:6px 0"><b>{escape(name)}</b><br>{spans}</div>'


def _span(token: str, share: float, score: float) -> str:
    """One token; its colour's strength is `share` of the map's largest absolute score."""
    colour = _RAISES if share >= 0 else _LOWERS
    style = f"{_TOKEN};background:linear-gradient(rgba({colour},{0.75 * abs(share):.2f}) 0 0),#fff"
    return f'<span title="{score:.4f}" style="{style}">{escape(token)}</span>'
