"""What half of leave-one-out's passes buy, from recorded maps, and the picture of prices."""

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments import price


@pytest.mark.parametrize(
    "text", ["a film that is never dull", "well made, and never once dull " * 9]
)
def test_half_of_loo_from_maps_is_what_the_package_buys(clf, text):
    inputs = clf.encode([text])
    kinds = [("loo", "", 0, {}), ("mask-gradient", "exact-block", 1, {})]
    kinds += [
        ("mask-gradient", price.frame.SUM, k, {"groups": k, "with_open": True}) for k in (2, 4, 8)
    ]
    content = inputs.content_mask[0].numpy()
    facts = {"model": "m", "data": "d", "id": "0", "content": content, "removal": ""}
    rows = [
        facts
        | {"method": method, "form": form, "groups": groups}
        | {"scores": lrp.attribute(clf, inputs, method, **options)[0].numpy()}
        for method, form, groups, options in kinds
    ]
    (found,) = price._budgeted(pd.DataFrame(rows)).scores
    bought = lrp.attribute(clf, inputs, "budgeted-loo", budget=0.5)[0].numpy()
    assert found == pytest.approx(bought, abs=1e-4)
    assert 0 < np.sum(found == rows[0]["scores"]) < len(found)


def test_the_picture_has_a_panel_per_data_set_and_a_line_per_model():
    names = [*price.WAYS, price.LOO]
    index = pd.MultiIndex.from_product(
        [["SST-2", "mine"], ["one", "two"], names], names=["data", "model", "map"]
    )
    values = np.linspace(-0.5, 1, len(index))
    means = pd.DataFrame({"value": values, "low": values - 0.1, "high": values + 0.1}, index)
    drawn = price.draw(means, "A message")
    assert [axis.get_title(loc="left") for axis in drawn.axes] == ["sentences", "mine"]
    assert drawn.axes[0].get_ylim()[0] < -0.5
    assert drawn.values.loc["mine", "two", price.LOO].value == 1
    lines = [line for line in drawn.axes[1].lines if len(line.get_xdata()) == 5]
    assert len({line.get_color() for line in lines}) == 2
