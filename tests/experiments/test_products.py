"""Product trees: every attribution against a second computation that knows nothing of the first."""

from fractions import Fraction
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import paper, products
from experiments.products import (
    bracketings,
    leave_one_out,
    relevance,
    symbols,
)

fractions = st.fractions(min_value=-9, max_value=9, max_denominator=8)


@st.composite
def random_trees(draw, values=fractions, largest=6):
    """A random binary tree over 2 … `largest` factors with random values."""
    nodes = list(symbols(draw(st.lists(values, min_size=2, max_size=largest))))
    while len(nodes) > 1:
        place = draw(st.integers(0, len(nodes) - 2))
        nodes[place : place + 2] = [nodes[place] * nodes[place + 1]]
    return nodes[0]


# --- second implementations ------------------------------------------------------------------


def depths(tree):
    """The brackets open before each factor of a tree as it is written, the outermost counted."""
    text = f"({tree})"
    before = [text[: text.index(leaf.name)] for leaf in products.leaves(tree)]
    return [part.count("(") - part.count(")") for part in before]


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


@pytest.mark.parametrize("data", ["SST-2", "IMDB"])
def test_the_printed_tables_agree(data):
    rows = paper.ablations(data)
    assert rows.loc[["front", "back", "single"]].index.is_unique
    assert (rows.groupby(level="family").size().drop(["attnlrp", "cp-lrp"]) == 12).all()
    # Up to the printed rounding: Δ is LeRF − MoRF, and every layer bypassed is CP-LRP.
    assert (rows.lerf - rows.morf - rows.delta).abs().max() < 0.021
    ends = rows.loc[[("front", 12), ("back", 1)], "r"]
    assert list(ends) == pytest.approx([rows.r["cp-lrp", 0]] * 2, abs=0.011)
