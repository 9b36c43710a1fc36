"""What each factor of a product gets: by rules that see the tree, and by the function alone.

Relevance goes down the tree in equal parts; Leave-One-Out, Shapley values and Integrated
Gradients take the product as a function. A factor that occurs twice gets the sum over its leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from math import comb
from numbers import Number
from typing import NamedTuple

import numpy as np

from lrputils.products.trees import (
    MAX_FACTORS,
    Factor,
    Node,
    Product,
    exact,
    leaves,
    value_at,
)


class Visit(NamedTuple):
    """What reaches one node of a tree: child indices from the root, the node, its share."""

    path: tuple[int, ...]
    node: Node
    share: Fraction


def flow(tree: Node, *, constant: Iterable[str] = ()) -> list[Visit]:
    """Send one unit from the root to the leaves; return each node's share, the root first.

    A node gives each of its m children 1/m of what it got: the AttnLRP rule of Achtibat et al.
    2024, Proposition 3.3, at ε = 0.

    Args:
        constant: names held constant. A subtree of constants gets nothing, as when it is detached.
    """
    names = dict.fromkeys(leaf.name for leaf in leaves(tree))
    held = {constant} if isinstance(constant, str) else set(constant)
    if unknown := sorted(held - names.keys()):
        raise ValueError(f"no factor named {unknown} in {tree}; it has {[*names]}")
    if held == names.keys():
        raise ValueError(f"every factor of {tree} is held constant: nothing can get relevance")

    def descend(node: Node, share: Fraction, path: tuple[int, ...]) -> Iterator[Visit]:
        yield Visit(path, node, share)
        if isinstance(node, Product):
            live = [any(leaf.name not in held for leaf in leaves(c)) for c in node.children]
            for place, child in enumerate(node.children):
                part = share * live[place] / max(sum(live), 1)
                yield from descend(child, part, (*path, place))

    return list(descend(tree, Fraction(1), ()))


def shares(tree: Node, **options) -> dict[str, Fraction]:
    """Return the share of the product that each factor gets; `options` as in `flow`."""
    collected: dict[str, Fraction] = defaultdict(Fraction)
    for _, node, share in flow(tree, **options):
        if isinstance(node, Factor):
            collected[node.name] += share
    return dict(collected)


def relevance(tree: Node, **options) -> dict[str, Fraction]:
    """Return each factor's relevance: its share times the product; `options` as in `flow`."""
    return {name: share * tree.value for name, share in shares(tree, **options).items()}


# --- attributions that see the function only -------------------------------------------------


def _points(
    tree: Node, baseline: Number | str | Mapping[str, Number | str]
) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Return the input and the baseline, each as name → value."""
    point: dict[str, Fraction] = {}
    for leaf in leaves(tree):
        if point.setdefault(leaf.name, leaf.value) != leaf.value:
            raise ValueError(f"{leaf.name} is {point[leaf.name]} and {leaf.value} in {tree}")
    if not isinstance(baseline, Mapping):
        return point, dict.fromkeys(point, exact(baseline))
    if set(baseline) != set(point):
        raise ValueError(f"baseline names {[*baseline]}, but {tree} has the factors {[*point]}")
    return point, {name: exact(baseline[name]) for name in point}


def leave_one_out(tree: Node, baseline: Number | str | Mapping = 0) -> dict[str, Fraction]:
    """Return how much the product falls where one factor takes its baseline value."""
    point, removed = _points(tree, baseline)
    return {name: tree.value - value_at(tree, {**point, name: removed[name]}) for name in point}


def shapley(tree: Node, baseline: Number | str | Mapping = 0) -> dict[str, Fraction]:
    """Return Shapley values of the game in which absent factors take their baseline value.

    From the definition (Shapley 1953), over all subsets: at most `MAX_FACTORS` names.
    """
    point, absent = _points(tree, baseline)
    if len(point) > MAX_FACTORS:
        raise ValueError(f"shapley takes up to {MAX_FACTORS} factors, got {len(point)}")
    worth = {
        frozenset(present): value_at(tree, {**absent, **{name: point[name] for name in present}})
        for size in range(len(point) + 1)
        for present in combinations(point, size)
    }
    values = dict.fromkeys(point, Fraction(0))
    for present, value in worth.items():
        for name in point.keys() - present:
            weight = Fraction(1, len(point) * comb(len(point) - 1, len(present)))
            values[name] += weight * (worth[present | {name}] - value)
    return values


def integrated_gradients(tree: Node, baseline: Number | str | Mapping = 0) -> dict[str, Fraction]:
    """Return Integrated Gradients on the straight path from the baseline, integrated exactly.

    Along the path each factor is linear in t, so the gradient is a polynomial in t; its integral
    from 0 to 1 needs no steps (Sundararajan et al. 2017, Equation 1).
    """
    point, start = _points(tree, baseline)
    powers = Counter(leaf.name for leaf in leaves(tree))
    values = {}
    for name in point:
        gradient = np.array([Fraction(powers[name])])
        for leaf in (powers - Counter([name])).elements():
            gradient = np.convolve(gradient, [start[leaf], point[leaf] - start[leaf]])
        integral = sum(value / (degree + 1) for degree, value in enumerate(gradient))
        values[name] = (point[name] - start[name]) * integral
    return values
