"""How many answers there are: bracketings, and the shares that the equal split gives them."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import cache
from math import comb

from lrputils.products.attributions import shares
from lrputils.products.trees import MAX_FACTORS, bracketings, symbols


def count_bracketings(k: int) -> int:
    """Return Catalan(k − 1), the number of binary bracketings of k factors in a fixed order."""
    _check(k, largest=None)
    return comb(2 * k - 2, k - 1) // k


def count_answers(k: int) -> int:
    """Return how many share vectors the equal split gives over all orders and bracketings.

    These are the ways to write 1 as an ordered sum of k powers of 1/2, counted level by level: of
    the nodes open at one depth some become leaves, and each of the others opens two below.
    """
    _check(k, largest=None)

    @cache
    def ways(open_nodes: int, left: int) -> int:
        if open_nodes >= left:
            return int(open_nodes == left)
        return sum(
            comb(left, leaves) * ways(2 * (open_nodes - leaves), left - leaves)
            for leaves in range(open_nodes)
        )

    return ways(1, k)


def share_counts(k: int) -> list[Counter[Fraction]]:
    """Return, for each of k factors in order, how many bracketings give it which share."""
    return [Counter(column) for column in zip(*_share_vectors(k), strict=True)]


def census(largest: int) -> list[dict[str, int | Fraction]]:
    """Return one row for each k from 3 to `largest`: bracketings and what the equal split says.

    "bracketings" is Catalan's formula; "different answers" are counted among the share vectors of
    all trees, so that the two columns are independent of each other.
    """
    _check(largest, smallest=3)
    return [
        {
            "factors": k,
            "bracketings": count_bracketings(k),
            "different answers": len(set(vectors)),
            "in any order": count_answers(k),
            "smallest share": min(map(min, vectors)),
            "largest share": max(map(max, vectors)),
        }
        for k in range(3, largest + 1)
        for vectors in [_share_vectors(k)]
    ]


def _share_vectors(k: int) -> list[tuple[Fraction, ...]]:
    _check(k)
    return [tuple(shares(tree).values()) for tree in bracketings(symbols([1] * k))]


def _check(k: int, smallest: int = 1, largest: int | None = MAX_FACTORS) -> None:
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"the number of factors must be an integer, not {k!r}")
    if k < smallest or (largest is not None and k > largest):
        upper = f" to {largest}" if largest is not None else " or more"
        raise ValueError(f"the number of factors must be {smallest}{upper}, not {k}")
