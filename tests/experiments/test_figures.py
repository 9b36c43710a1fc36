"""Figures of trees and of the specification grid show the numbers that they are given."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from experiments import products
from experiments.specifications import lead_grid
from experiments.trees import relevance_trees
from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS


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


@pytest.fixture
def table():
    index = [(at, n) for at in ("word", "sum") for n in ("all", "no [CLS]", "neither")]
    index = pd.MultiIndex.from_tuples(index, names=["read-out", "tokens"])
    value, higher = [0.3, -0.2, 0.001, -0.001, 0.1, 0.4], [1, -1, 0, 0, 0, 1]
    lead = [1, 0, 0, 0, 0, 0]
    return pd.DataFrame({"value": value, "higher": higher, "lead": lead}, index)


def test_a_cell_has_the_value_and_the_colour_of_the_method_that_is_higher(table):
    figure = lead_grid({"a model: raw": table.iloc[::-1]}, title="Who is higher")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [
        "+.30",
        "−.20",
        "+.00",
        "+.00",
        "+.10",
        "+.40",
    ]
    assert [text.get_fontweight() for text in axes.texts].count("bold") == 1
    colours = [to_hex(cell.get_facecolor()) for cell in axes.patches]
    attnlrp, cp = (COLORS[METHODS[m].colour].lower() for m in ("attnlrp", "cp-lrp"))
    assert colours[:2] == [attnlrp, cp]
    assert colours[5] == attnlrp
    assert not {attnlrp, cp} & {*colours[2:5]}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["word embeddings", "sum"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "no\n[CLS]", "own"]
    assert figure.values.value.loc["a model: raw", "word", "no [CLS]"] == -0.2
