"""Product trees: every attribution against a second computation that knows nothing of the first."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import factorial, prod

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lrputils import paper, products
from lrputils.products import (
    bracketings,
    integrated_gradients,
    leave_one_out,
    relevance,
    shapley,
    symbols,
)

# A busy machine is no failure.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

fractions = st.fractions(min_value=-9, max_value=9, max_denominator=8)
nonzero = fractions.filter(bool)


@st.composite
def random_trees(draw, values=fractions, largest=6):
    """A random binary tree over 2 … `largest` factors with random values."""
    nodes = list(symbols(draw(st.lists(values, min_size=2, max_size=largest))))
    while len(nodes) > 1:
        place = draw(st.integers(0, len(nodes) - 2))
        nodes[place : place + 2] = [nodes[place] * nodes[place + 1]]
    return nodes[0]


# --- second implementations ------------------------------------------------------------------


def shapley_by_orders(function, point, baseline):
    """The mean gain of each factor over all orders in which the factors can join."""
    gains = dict.fromkeys(point, Fraction(0))
    for order in permutations(point):
        current = dict(baseline)
        for name in order:
            before = function(current)
            current[name] = point[name]
            gains[name] += function(current) - before
    return {name: gain / factorial(len(point)) for name, gain in gains.items()}


def depths(tree):
    """The brackets open before each factor of a tree as it is written, the outermost counted."""
    text = f"({tree})"
    before = [text[: text.index(leaf.name)] for leaf in products.leaves(tree)]
    return [part.count("(") - part.count(")") for part in before]


def at(tree, point):
    return prod(point[leaf.name] for leaf in products.leaves(tree))


# --- the paper -------------------------------------------------------------------------------


@pytest.mark.parametrize(("formula", "method"), list(paper.scalar_example().index))
def test_the_papers_numbers(formula, method):
    verbs = {"AttnLRP": relevance, "LOO": leave_one_out}
    x1, x2, x3 = symbols(paper.SCALAR_POINT)
    tree = {str(t): t for t in ((x1 * x2) * x3, x1 * (x2 * x3))}[formula]
    assert list(verbs[method](tree).values()) == list(paper.scalar_example().loc[formula, method])


# --- relevance -------------------------------------------------------------------------------


@given(random_trees())
def test_relevance_is_the_product_halved_once_for_each_multiplication_above(tree):
    assert list(relevance(tree).values()) == [tree.value / 2**depth for depth in depths(tree)]
    assert sum(relevance(tree).values()) == tree.value


def test_a_factor_that_occurs_twice_gets_the_sum_of_its_leaves():
    a, b = symbols({"a": 2, "b": 3})
    assert relevance((a * b) * a) == {"a": 9, "b": 3}


# --- what depends on the function only -------------------------------------------------------


@given(random_trees(largest=5), fractions)
def test_leave_one_out_by_hand(tree, baseline):
    leaves = products.leaves(tree)
    for name, drop in leave_one_out(tree, baseline).items():
        rest = prod(leaf.value for leaf in leaves if leaf.name != name)
        own = next(leaf.value for leaf in leaves if leaf.name == name)
        assert drop == (own - baseline) * rest


@given(random_trees(largest=5), fractions)
@slow
def test_shapley_against_all_orders(tree, baseline):
    point = {leaf.name: leaf.value for leaf in products.leaves(tree)}
    start = dict.fromkeys(point, baseline)
    assert shapley(tree, baseline) == shapley_by_orders(lambda x: at(tree, x), point, start)


@given(random_trees(largest=5), fractions)
@slow
def test_ig_equals_shapley_for_distinct_factors_and_both_are_complete(tree, baseline):
    values = integrated_gradients(tree, baseline)
    assert values == shapley(tree, baseline)
    reached = at(tree, dict.fromkeys(values, baseline))
    assert sum(values.values()) == tree.value - reached


def test_with_a_repeated_factor_ig_and_shapley_part():
    a, b = symbols({"a": 2, "b": 3})
    tree = (a * b) * a
    assert integrated_gradients(tree) == {"a": 8, "b": 4}
    assert shapley(tree) == {"a": 6, "b": 6}
    # By hand: on a = (1 + 3t) / 2, b = (1 + 5t) / 2 they are 3/2 · ∫ 2ab dt and 5/2 · ∫ a² dt.
    at_half = integrated_gradients(tree, Fraction(1, 2))
    assert at_half == {"a": Fraction(15, 2), "b": Fraction(35, 8)}


# --- counting --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 10))
def test_bracketings_are_catalan_many_and_their_depths_all_differ(k):
    trees = bracketings(symbols([1] * k))
    recurrence = [1]
    for n in range(1, k):
        recurrence.append(sum(recurrence[i] * recurrence[n - 1 - i] for i in range(n)))
    assert len(trees) == len(set(map(str, trees))) == recurrence[-1]
    assert len({tuple(depths(tree)) for tree in trees}) == len(trees)


# --- refusing --------------------------------------------------------------------------------


def test_numbers_are_what_they_look_like():
    values = [factor.value for factor in symbols([0.1, "1/10", np.float64(0.1), np.int64(3)])]
    assert values == [Fraction(1, 10)] * 3 + [3]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: symbols([float("nan")]), ValueError, "'nan'"),
        (lambda x: x[0] * 3, TypeError, "'Factor' and 'int'"),
        (lambda x: bracketings(symbols([1] * 13)), ValueError, "1 to 12 factors, got 13"),
        (lambda x: bracketings([]), ValueError, "got 0"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(symbols([2, 3, 4]))
