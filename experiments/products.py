"""Product trees, and exact attributions on them.

    x1, x2, x3 = products.symbols([2, 3, 4])
    products.relevance((x1 * x2) * x3)          # x1: 6, x2: 6, x3: 12
    products.relevance(x1 * (x2 * x3))          # x1: 12, x2: 6, x3: 6
    products.leave_one_out(x1 * (x2 * x3))      # 24 each, however it is bracketed

A tree says in which order a product is multiplied. Relevance goes down the tree in equal parts;
Leave-One-Out takes the product as a function. A factor that occurs twice gets the sum over its
leaves. All is computed in fractions; there are no tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import prod
from numbers import Number

# Some callers visit all bracketings: 58,786 of 12 factors, 208,012 of 13.
_MAX_FACTORS = 12


@dataclass(frozen=True)
class Factor:
    """A leaf: a named number. `*` builds a product."""

    name: str
    value: Fraction

    def __mul__(self, other: Node) -> Product:
        return Product(self, other) if isinstance(other, (Factor, Product)) else NotImplemented

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Product:
    """An inner node: the product of two subexpressions. `*` builds another."""

    left: Node
    right: Node

    __mul__ = Factor.__mul__

    @property
    def value(self) -> Fraction:
        """The product of all leaves."""
        return prod(leaf.value for leaf in leaves(self))

    def __str__(self) -> str:
        sides = (self.left, self.right)
        return " * ".join(f"({side})" if isinstance(side, Product) else str(side) for side in sides)


Node = Factor | Product


def symbols(values: Sequence | Mapping[str, Number | str]) -> tuple[Factor, ...]:
    """Return one factor a value: named by the mapping's keys, or `x1`, `x2`, … for a sequence.

    A value counts as it is printed: 0.1 is 1/10, "1/3" is a third. ValueError for another string.
    """
    if not isinstance(values, Mapping):
        values = {f"x{i}": value for i, value in enumerate(values, start=1)}
    return tuple(Factor(name, Fraction(str(value))) for name, value in values.items())


def bracketings(factors: Sequence[Node]) -> tuple[Node, ...]:
    """Return every binary tree over `factors` in this order, left-to-right first.

    There are Catalan(k − 1) for k factors: the root cuts the sequence at one of k − 1 places. The
    first tree multiplies from the left, the last from the right.
    """
    factors = tuple(factors)
    if not 1 <= len(factors) <= _MAX_FACTORS:
        raise ValueError(f"bracketings takes 1 to {_MAX_FACTORS} factors, got {len(factors)}")

    @cache
    def over(start: int, stop: int) -> tuple[Node, ...]:
        return tuple(
            left * right
            for cut in range(stop - 1, start, -1)
            for left in over(start, cut)
            for right in over(cut, stop)
        ) or (factors[start],)

    return over(0, len(factors))


def leaves(tree: Node) -> list[Factor]:
    """Return the tree's leaves from left to right, a factor as often as it occurs."""
    return [node for node, _ in flow(tree).values() if isinstance(node, Factor)]


# --- relevance, which sees the tree ----------------------------------------------------------


def flow(
    tree: Node, share: Fraction = Fraction(1), path: str = ""
) -> dict[str, tuple[Node, Fraction]]:
    """Send one unit from the root to the leaves; return each node with its share, the root first.

    A key is the way from the root, as "LR" for the left child's right one. A node gives either
    child half of what it got: the AttnLRP rule of Achtibat et al. 2024, Proposition 3.3, at ε = 0.
    """
    reached = {path: (tree, share)}
    if isinstance(tree, Product):
        reached |= flow(tree.left, share / 2, path + "L")
        reached |= flow(tree.right, share / 2, path + "R")
    return reached


def shares(tree: Node) -> dict[str, Fraction]:
    """Return the share of the product that each factor gets."""
    collected: Counter[str] = Counter()
    for node, share in flow(tree).values():
        if isinstance(node, Factor):
            collected[node.name] += share
    return dict(collected)


def relevance(tree: Node) -> dict[str, Fraction]:
    """Return each factor's relevance: its share times the product."""
    return {name: share * tree.value for name, share in shares(tree).items()}


# --- an attribution that sees the function only ----------------------------------------------


def leave_one_out(tree: Node, baseline: Number = 0) -> dict[str, Fraction]:
    """Return how much the product falls where one factor takes the value `baseline`."""
    factors, absent = leaves(tree), Fraction(baseline)

    def without(name: str) -> Fraction:
        return prod(absent if factor.name == name else factor.value for factor in factors)

    return {factor.name: tree.value - without(factor.name) for factor in factors}
