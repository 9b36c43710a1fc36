"""The figure of the specification grid shows the numbers that it is given, by who leads."""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from experiments.specifications import lead_grid
from lrputils.attribution import METHODS
from lrputils.report.figures.style import COLORS


@pytest.fixture
def table():
    index = [(at, n) for at in ("word", "sum") for n in ("all", "no [CLS]", "neither")]
    index = pd.MultiIndex.from_tuples(index, names=["read-out", "tokens"])
    value, lead = [0.3, -0.2, 0.001, -0.001, 0.1, 0.4], [1, -1, 0, 0, 0, 1]
    return pd.DataFrame({"value": value, "lead": lead}, index)


def test_a_cell_has_the_value_and_the_colour_of_the_method_that_leads(table):
    figure = lead_grid({"a model: raw": table.iloc[::-1]}, title="Who leads")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == [
        "+.30",
        "−.20",
        "+.00",
        "+.00",
        "+.10",
        "+.40",
    ]
    colours = [to_hex(cell.get_facecolor()) for cell in axes.patches]
    attnlrp, cp = (COLORS[METHODS[m].colour].lower() for m in ("attnlrp", "cp-lrp"))
    assert colours[:2] == [attnlrp, cp]
    assert colours[5] == attnlrp
    assert not {attnlrp, cp} & {*colours[2:5]}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["words", "sum"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "no\n[CLS]", "own"]
    assert figure.values.value.loc["a model: raw", "word", "no [CLS]"] == -0.2


def test_two_panels_stand_in_a_row(table):
    figure = lead_grid(
        dict.fromkeys(["a: raw", "a: sum to one", "b: raw", "b: other"], table), title=""
    )
    rows = {axes.get_subplotspec().rowspan.start for axes in figure.axes}
    assert (len(figure.axes), rows) == (4, {0, 1})
