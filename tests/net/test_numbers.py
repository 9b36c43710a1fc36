"""Headline values: the literal, what the committed notebook shows, and what `results/` gives."""

from __future__ import annotations

import pytest

from tests.net import numbers

HEADLINES = numbers.headlines()
EXACT, ENDS = 1e-6, 0.005  # of a value, and of an interval's ends


def _misses(headline: numbers.Headline, found: numbers.Found) -> dict:
    """What differs, name → (found, literal)."""
    allowed = {"value": EXACT, "low": ENDS, "high": ENDS, "n": 0}
    pairs = {name: (getattr(found, name), getattr(headline, name)) for name in allowed}
    return {
        name: pair
        for name, pair in pairs.items()
        if None not in pair and not abs(pair[0] - pair[1]) <= allowed[name]
    }


def _name(headline: numbers.Headline) -> str:
    return f"{headline.chapter}: {headline.shown}"


@pytest.mark.parametrize("headline", HEADLINES, ids=_name)
def test_the_notebook_shows_the_literal(headline):
    found = numbers.in_notebook(headline.chapter, headline.shown)
    assert found, f"{headline.chapter} no longer shows {headline.shown!r}"
    misses = [_misses(headline, place) for place in found]
    assert {} in misses, misses


@pytest.mark.parametrize("headline", [h for h in HEADLINES if h.computed], ids=_name)
def test_the_rows_give_the_literal(headline):
    assert not _misses(headline, numbers.recomputed(headline.computed))
