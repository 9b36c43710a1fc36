"""The tree figures say what the trees say."""

import pytest

from experiments import products
from experiments.trees import relevance_trees


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
