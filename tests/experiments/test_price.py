"""What exact passes buy, from recorded maps, and the picture of prices."""

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments import price
from lrputils.study.variants import spelled


@pytest.mark.parametrize(
    "text", ["a film that is never dull", "well made, and never once dull " * 9]
)
def test_exact_passes_from_maps_are_what_the_package_buys(clf, text):
    inputs = clf.encode([text])
    kinds = [("loo", {}), ("mask-gradient", {})]
    kinds += [("mask-gradient", {"groups": k, "with_open": True}) for k in (2, 4, 8)]
    content = inputs.content_mask[0].numpy()
    facts = {"model": "m", "data": "d", "id": "0", "content": content, "removal": ""}
    rows = [
        facts
        | {"method": method, "options": spelled(options)}
        | {"scores": lrp.attribute(clf, inputs, method, **options)[0].numpy()}
        for method, options in kinds
    ]
    found = price._budgeted(pd.DataFrame(rows)).set_index("options").scores
    assert {*found.index} == {"budget=6", "budget=9", "budget=0.5"}
    for name in found.index:
        method, options = "budgeted-loo", {"budget": float(name.removeprefix("budget="))}
        bought = lrp.attribute(clf, inputs, method, **options)[0].numpy()
        assert found[name] == pytest.approx(bought, abs=1e-4)
        assert 0 < np.sum(found[name] == rows[0]["scores"]) <= len(bought)


def test_a_text_has_the_price_of_its_length():
    content = [False, *[True] * 20, False]
    maps = pd.DataFrame({"map": [price.ONE, price.SIX, price.HALF, price.LOO]})
    facts = {"model": "m", "data": "d", "id": "0", "readout": "", "options": ""}
    maps = maps.assign(**facts, removal="", method=["a", "b", "c", "loo"])
    maps["content"], scores = [content] * 4, np.random.default_rng(0).normal(size=(4, 22))
    r = price.compare_with_loo(maps.assign(scores=[*scores]))
    assert r.set_index("map").passes.to_dict() == {
        price.ONE: 3,
        price.SIX: 9,
        price.HALF: 11,
        price.LOO: 20,
    }


def test_the_picture_has_a_panel_per_model_and_data_set_at_each_text_price():
    names = [*price.WAYS, price.LOO]
    index = pd.MultiIndex.from_product(
        [["SST-2", "mine"], ["one", "two"], names], names=["data", "model", "map"]
    )
    values = np.linspace(-0.5, 1, len(index))
    means = pd.DataFrame({"value": values, "low": values - 0.1, "high": values + 0.1}, index)
    means["passes"] = [3, 3, 3, 3, 6, 9, 6, 9, 12, 24.0] * 4
    drawn = price.draw(means, "A message")
    titles = [axis.get_title(loc="left") for axis in drawn.axes]
    assert titles == ["one, sentences", "two, sentences", "one, mine", "two, mine"]
    assert drawn.axes[0].get_ylim()[0] < -0.5
    assert drawn.values.loc["mine", "two", price.LOO].value == 1
    groups, exact, *_ = drawn.axes[3].lines
    assert groups.get_xdata().tolist() == [3, 6, 9]
    assert exact.get_xdata().tolist() == [3, 6, 9, 12, 24]
    assert (
        exact.get_ydata().tolist()
        == means.value.loc["mine", "two"][
            [price.ONE, price.THREE, price.SIX, price.HALF, price.LOO]
        ].to_list()
    )
    assert len({line.get_color() for line in drawn.axes[3].lines}) == 6
