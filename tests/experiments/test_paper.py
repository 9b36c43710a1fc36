"""The printed tables agree with one another."""

import pytest

from experiments import paper


@pytest.mark.parametrize("data", ["sst", "imdb"])
def test_the_printed_tables_agree(data):
    rows = paper.ablations(data)
    assert rows.loc[["front", "back", "single"]].index.is_unique
    assert (rows.groupby(level="family").size().drop(["attnlrp", "cp-lrp"]) == 12).all()
    # Up to the printed rounding: Δ is LeRF − MoRF, and every layer bypassed is CP-LRP.
    assert (rows.lerf - rows.morf - rows.delta).abs().max() < 0.021
    ends = rows.loc[[("front", 12), ("back", 1)], "r"]
    assert list(ends) == pytest.approx([rows.r["cp-lrp", 0]] * 2, abs=0.011)
