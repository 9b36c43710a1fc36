"""Product trees: every attribution against a second computation that knows nothing of the first."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import factorial, prod

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lrputils import paper, products
from lrputils.products import (
    bracketings,
    flow,
    integrated_gradients,
    leave_one_out,
    relevance,
    shapley,
    shares,
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


def halved(product):
    """A product whose gradient is halved at both factors: LRP as modified gradient × input."""
    return product.detach() + (product - product.detach()) / 2


def relevance_by_autograd(tree):
    leaves = {}

    def run(node):
        if isinstance(node, products.Factor):
            value = torch.tensor(float(node.value), dtype=torch.float64, requires_grad=True)
            return leaves.setdefault(node.name, value)
        return halved(run(node.left) * run(node.right))

    run(tree).backward()
    return {name: (leaf * leaf.grad).item() for name, leaf in leaves.items()}


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


def ig_by_quadrature(tree, baseline):
    """Gauss-Legendre with torch gradients of the plain product; exact for these polynomials."""
    leaves = {leaf.name: float(leaf.value) for leaf in products.leaves(tree)}
    start = torch.tensor([float(baseline)] * len(leaves), dtype=torch.float64)
    end = torch.tensor([*leaves.values()], dtype=torch.float64)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    total = torch.zeros_like(end)
    for node, weight in zip(nodes, weights, strict=True):
        x = (start + (node + 1) / 2 * (end - start)).requires_grad_()
        at = dict(zip(leaves, x, strict=True))
        prod(at[leaf.name] for leaf in products.leaves(tree)).backward()
        total += weight / 2 * x.grad
    return dict(zip(leaves, ((end - start) * total).tolist(), strict=True))


def depths(tree):
    """The brackets open before each factor of a tree as it is written, the outermost counted."""
    text = f"({tree})"
    before = [text[: text.index(leaf.name)] for leaf in products.leaves(tree)]
    return [part.count("(") - part.count(")") for part in before]


def at(tree, point):
    return prod(point[leaf.name] for leaf in products.leaves(tree))


def as_floats(values):
    return {name: float(value) for name, value in values.items()}


# --- the paper -------------------------------------------------------------------------------


@pytest.mark.parametrize(("formula", "method"), list(paper.scalar_example().index))
def test_the_papers_numbers(formula, method):
    verbs = {"AttnLRP": relevance, "LOO": leave_one_out}
    x1, x2, x3 = symbols(paper.SCALAR_POINT)
    tree = {str(t): t for t in ((x1 * x2) * x3, x1 * (x2 * x3))}[formula]
    assert list(verbs[method](tree).values()) == list(paper.scalar_example().loc[formula, method])


# --- relevance -------------------------------------------------------------------------------


@given(random_trees())
@slow
def test_relevance_is_gradient_times_input_with_halved_products(tree):
    assert as_floats(relevance(tree)) == pytest.approx(relevance_by_autograd(tree), abs=1e-9)


@given(random_trees())
def test_relevance_is_the_product_halved_once_for_each_multiplication_above(tree):
    assert list(relevance(tree).values()) == [tree.value / 2**depth for depth in depths(tree)]
    assert sum(relevance(tree).values()) == tree.value


def test_a_factor_that_occurs_twice_gets_the_sum_of_its_leaves():
    a, b = symbols({"a": 2, "b": 3})
    assert relevance((a * b) * a) == {"a": 9, "b": 3}


def test_flow_visits_every_node_with_what_reaches_it():
    x1, x2, x3 = symbols([2, 3, 4])
    reached = {path: share for path, (_, share) in flow((x1 * x2) * x3).items()}
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    assert reached == {"": 1, "L": half, "LL": quarter, "LR": quarter, "R": half}


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
@settings(slow, max_examples=40)
def test_integrated_gradients_against_quadrature(tree, baseline):
    expected = ig_by_quadrature(tree, baseline)
    assert as_floats(integrated_gradients(tree, baseline)) == pytest.approx(expected, abs=1e-6)


@given(random_trees(largest=5), fractions)
@slow
def test_ig_equals_shapley_for_distinct_factors_and_both_are_complete(tree, baseline):
    values = integrated_gradients(tree, baseline)
    assert values == shapley(tree, baseline)
    reached = at(tree, dict.fromkeys(values, baseline))
    assert sum(values.values()) == tree.value - reached


@given(random_trees())
def test_from_zero_each_gets_one_kth_and_loo_is_k_times_it(tree):
    k = len(products.leaves(tree))
    assert set(integrated_gradients(tree).values()) == {tree.value / k}
    assert set(leave_one_out(tree).values()) == {tree.value}


def test_with_a_repeated_factor_ig_and_shapley_part():
    a, b = symbols({"a": 2, "b": 3})
    tree = (a * b) * a
    assert integrated_gradients(tree) == {"a": 8, "b": 4}
    assert shapley(tree) == {"a": 6, "b": 6}
    expected = ig_by_quadrature(tree, Fraction(1, 2))
    assert as_floats(integrated_gradients(tree, Fraction(1, 2))) == pytest.approx(expected)


def test_no_bracketing_changes_what_the_function_says():
    trees = bracketings(symbols([2, "-1/2", 3, 5]))
    for method in (leave_one_out, shapley, integrated_gradients):
        assert len({tuple(method(tree).items()) for tree in trees}) == 1
    assert len({tuple(relevance(tree).items()) for tree in trees}) == len(trees)


def test_a_removal_of_a_kth_of_each_factor_conserves():
    tree = bracketings(symbols([-4, -4, -4, -4]))[0]
    assert sum(leave_one_out(tree, -3).values()) == tree.value


# --- counting --------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 10))
def test_bracketings_are_catalan_many_and_their_depths_all_differ(k):
    trees = bracketings(symbols([1] * k))
    recurrence = [1]
    for n in range(1, k):
        recurrence.append(sum(recurrence[i] * recurrence[n - 1 - i] for i in range(n)))
    assert len(trees) == len(set(map(str, trees))) == recurrence[-1]
    assert len({tuple(depths(tree)) for tree in trees}) == len(trees)


@pytest.mark.parametrize("k", range(3, 9))
def test_outer_factors_reach_a_half_and_inner_ones_a_quarter(k):
    halves = [Fraction(1, 2**depth) for depth in range(1, k)]
    each = [shares(tree).values() for tree in bracketings(symbols([1] * k))]
    for place, found in enumerate(zip(*each, strict=True)):
        outer = place in (0, k - 1)
        assert sorted(set(found), reverse=True) == halves[0 if outer else 1 :]


def test_over_all_orders_the_mean_share_is_one_kth():
    names = ["a", "b", "c", "d"]
    for shape in range(5):
        total = dict.fromkeys(names, Fraction(0))
        for order in permutations(names):
            tree = bracketings(symbols(dict.fromkeys(order, 1)))[shape]
            for name, share in shares(tree).items():
                total[name] += share / 24
        assert set(total.values()) == {Fraction(1, 4)}


# --- matrices --------------------------------------------------------------------------------


def test_linear_attention_splits_as_its_brackets_say():
    generator = torch.Generator().manual_seed(0)
    x, read_out, *weights = (
        torch.randn(*shape, dtype=torch.float64, generator=generator)
        for shape in ((5, 3), (5, 4), (3, 4), (3, 4), (3, 4))
    )

    def through(keep, matmul, right_first, scale=1.0):
        """Gradient × input at the scaled tokens, through the projections in `keep` only."""
        tokens = (x * scale).requires_grad_()
        q, k, v = (
            (tokens if name in keep else tokens.detach()) @ w
            for name, w in zip("qkv", weights, strict=True)
        )
        out = matmul(q, matmul(k.mT, v)) if right_first else matmul(matmul(q, k.mT), v)
        (gradient,) = torch.autograd.grad((out * read_out).sum(), tokens)
        return tokens.detach() * gradient, (out * read_out).sum().item()

    parts = {name: through(name, torch.matmul, False)[0] for name in "qkv"}
    value = through("qkv", torch.matmul, False)[1]
    for part in parts.values():
        assert part.sum().item() == pytest.approx(value)
    q, k, v = symbols(dict.fromkeys("qkv", 1))
    for right_first, tree in ((False, (q * k) * v), (True, q * (k * v))):
        split = shares(tree)
        expected = sum(float(split[name]) * parts[name] for name in "qkv")
        torch.testing.assert_close(
            through("qkv", lambda a, b: halved(a @ b), right_first)[0], expected
        )
    nodes, weights_at = np.polynomial.legendre.leggauss(3)
    whole = sum(parts.values())
    ig = torch.zeros_like(whole)
    for node, weight in zip((nodes + 1) / 2, weights_at / 2, strict=True):
        ig += weight / node * through("qkv", torch.matmul, False, scale=node)[0]
    torch.testing.assert_close(ig, whole / 3)


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
