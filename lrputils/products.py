"""Product trees, and exact attributions on them.

    x1, x2, x3 = products.symbols([2, 3, 4])
    products.relevance((x1 * x2) * x3)          # x1: 6, x2: 6, x3: 12
    products.relevance(x1 * (x2 * x3))          # x1: 12, x2: 6, x3: 6
    products.leave_one_out(x1 * (x2 * x3))      # 24 each, however it is bracketed

A tree says in which order a product is multiplied. Relevance goes down the tree in equal parts;
Leave-One-Out, Shapley values and Integrated Gradients take the product as a function. A factor
that occurs twice gets the sum over its leaves. All is computed in fractions; there are no tensors.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import combinations
from math import comb, prod
from numbers import Number
from typing import NamedTuple

import numpy as np

# Some callers visit all bracketings: 58,786 of 12 factors, 208,012 of 13.
MAX_FACTORS = 12


class Node:
    """A subexpression: a factor or a product. `*` builds a binary product."""

    value: Fraction

    def __mul__(self, other: Node) -> Product:
        return Product((self, other))

    def __rmul__(self, other: object) -> Product:
        return Product((other, self))


@dataclass(frozen=True)
class Factor(Node):
    """A leaf: a named number."""

    name: str
    value: Fraction

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Product(Node):
    """An inner node: the product of two or more subexpressions, multiplied in one step."""

    children: tuple[Node, ...]

    def __post_init__(self) -> None:
        for child in self.children:
            if not isinstance(child, Node):
                raise TypeError(
                    f"a product tree has named factors as leaves, not {child!r}: "
                    "name the number first, as in symbols({'c': 2})"
                )
        if len(self.children) < 2:
            raise ValueError(f"a product needs at least two factors, got {len(self.children)}")

    @cached_property
    def value(self) -> Fraction:
        """The product of the children's values."""
        return prod((child.value for child in self.children), start=Fraction(1))

    def __str__(self) -> str:
        if len(self.children) > 2:
            return f"product({', '.join(map(str, self.children))})"
        return " * ".join(f"({c})" if isinstance(c, Product) else str(c) for c in self.children)


# --- writing trees ---------------------------------------------------------------------------


def exact(value: Number | str) -> Fraction:
    """Return the fraction that `value` shows when printed: 0.1 is 1/10, "1/3" is a third."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, (Number, str)):
        raise TypeError(
            f"{value!r} is not a number; give an integer, a float or a string such as '1/3'"
        )
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a finite real number") from None


def symbols(values: Sequence | Mapping[str, Number | str]) -> tuple[Factor, ...]:
    """Return one factor a value: named by the mapping's keys, or `x1`, `x2`, … for a sequence."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"values must be a list of numbers or a mapping, not {values!r}")
    if not isinstance(values, Mapping):
        values = {f"x{i}": value for i, value in enumerate(values, start=1)}
    if not values:
        raise ValueError("values is empty: a product needs at least one factor")
    for name in values:
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"{name!r} cannot name a factor; use a word such as 'x1' or 'query'")
    return tuple(Factor(name, exact(value)) for name, value in values.items())


def product(*factors: Node) -> Product:
    """Return the product of all `factors` as one node: the k-ary way to write `x1 * … * xk`."""
    return Product(factors)


def parse(expression: str, values: Sequence | Mapping[str, Number | str]) -> Node:
    """Read a tree from text: names, `*`, brackets and `product(a, b, c)`.

    `x1 * x2 * x3` without brackets is read from the left, as Python does. Raises ValueError that
    repeats the expression where it is not such a product or a name has no value.
    """
    factors = {factor.name: factor for factor in symbols(values)}

    def build(part: ast.expr) -> Node:
        match part:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return build(left) * build(right)
            case ast.Call(func=ast.Name(id="product"), args=[_, _, *_], keywords=[]):
                return product(*map(build, part.args))
            case ast.Name(id=name) if name in factors:
                return factors[name]
            case ast.Name(id=name):
                raise ValueError(f"no value for {name!r} in {expression!r}; known: {[*factors]}")
        raise ValueError(
            f"{ast.unparse(part)!r} in {expression!r} is not a product of names; "
            "write something like '(x1 * x2) * x3'"
        )

    try:
        root = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"cannot read {expression!r}: {error.msg}") from None
    return build(root)


def flatten(tree: Node) -> Node:
    """Return the same product as a single node above all leaves: its canonical form."""
    below = leaves(tree)
    return product(*below) if len(below) > 1 else tree


def bracketings(factors: Sequence[Node]) -> tuple[Node, ...]:
    """Return every binary tree over `factors` in this order, left-to-right first.

    There are Catalan(k − 1) for k factors: the root cuts the sequence at one of k − 1 places. The
    first tree multiplies from the left, the last from the right.
    """
    factors = tuple(factors)
    if not 1 <= len(factors) <= MAX_FACTORS:
        raise ValueError(f"bracketings takes 1 to {MAX_FACTORS} factors, got {len(factors)}")

    @cache
    def over(start: int, stop: int) -> tuple[Node, ...]:
        return tuple(
            left * right
            for cut in range(stop - 1, start, -1)
            for left in over(start, cut)
            for right in over(cut, stop)
        ) or (factors[start],)

    return over(0, len(factors))


# --- reading trees ---------------------------------------------------------------------------


def leaves(tree: Node) -> list[Factor]:
    """Return the tree's leaves from left to right, a factor as often as it occurs."""
    if isinstance(tree, Factor):
        return [tree]
    return [leaf for child in tree.children for leaf in leaves(child)]


def leaf_depths(tree: Node) -> list[int]:
    """Return the number of multiplications above each leaf, from left to right."""
    if isinstance(tree, Factor):
        return [0]
    return [depth + 1 for child in tree.children for depth in leaf_depths(child)]


def value_at(tree: Node, values: Mapping[str, Number | str]) -> Fraction:
    """Return the tree's value where each factor takes its value from `values`."""
    if isinstance(tree, Factor):
        if tree.name not in values:
            raise ValueError(f"no value for {tree.name!r}; known: {[*values]}")
        return exact(values[tree.name])
    return prod((value_at(child, values) for child in tree.children), start=Fraction(1))


# --- relevance, which sees the tree ----------------------------------------------------------


class Visit(NamedTuple):
    """What reaches one node of a tree: child indices from the root, the node, its share."""

    path: tuple[int, ...]
    node: Node
    share: Fraction


def flow(tree: Node) -> list[Visit]:
    """Send one unit from the root to the leaves; return each node's share, the root first.

    A node gives each of its m children 1/m of what it got: the AttnLRP rule of Achtibat et al.
    2024, Proposition 3.3, at ε = 0.
    """

    def descend(node: Node, share: Fraction, path: tuple[int, ...]) -> Iterator[Visit]:
        yield Visit(path, node, share)
        if isinstance(node, Product):
            for place, child in enumerate(node.children):
                yield from descend(child, share / len(node.children), (*path, place))

    return list(descend(tree, Fraction(1), ()))


def shares(tree: Node) -> dict[str, Fraction]:
    """Return the share of the product that each factor gets."""
    collected: dict[str, Fraction] = defaultdict(Fraction)
    for _, node, share in flow(tree):
        if isinstance(node, Factor):
            collected[node.name] += share
    return dict(collected)


def relevance(tree: Node) -> dict[str, Fraction]:
    """Return each factor's relevance: its share times the product."""
    return {name: share * tree.value for name, share in shares(tree).items()}


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
