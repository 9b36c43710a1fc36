"""The tree figures say what the trees say."""

from __future__ import annotations

from fractions import Fraction

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from experiments import products
from experiments.trees import _number, relevance_trees


def texts(figure):
    figure.canvas.draw()
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_edges_are_labelled_with_their_relevance_and_as_wide_as_their_share():
    x1, x2, x3 = products.symbols([2, 3, 4])
    figure = relevance_trees([(x1 * x2) * x3, x1 * (x2 * x3)])
    for axis, tree in zip(figure.axes, ((x1 * x2) * x3, x1 * (x2 * x3)), strict=True):
        labels = [text.get_text() for text in axis.texts]
        assert axis.get_title() == str(tree)
        reached = [share for _, share in products.flow(tree).values()]
        assert all(str(share * tree.value) in labels for share in reached)
        widths, in_order = [line.get_linewidth() for line in axis.lines], reached[1:]
        assert sorted(range(4), key=lambda i: widths[i]) == sorted(
            range(4), key=lambda i: in_order[i]
        )


@pytest.mark.parametrize("values", [[0, 0, 0], [2.5, -3, 0.1, 7], [1e-9, 3], [5]])
def test_any_values_can_be_drawn(values):
    trees = products.bracketings(products.symbols(values))
    relevance_trees([trees[0], trees[-1]]).canvas.draw()


def test_labels_stay_short():
    assert _number(Fraction("3/8")) == "3/8"
    assert _number(Fraction("123456789/1000")) == "1.23e+05"


def test_no_figure_stays_open():
    before = plt.get_fignums()
    relevance_trees(products.bracketings(products.symbols([2, 3, 4])))
    assert plt.get_fignums() == before
