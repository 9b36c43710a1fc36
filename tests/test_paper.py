from __future__ import annotations

import pytest

from lrputils import paper


def test_delta_is_lerf_minus_morf_up_to_the_printed_rounding():
    table = paper.table2()
    assert (table.lerf - table.morf - table.delta).abs().max() < 0.021
    ablation = paper.table_a3()
    assert (ablation.lerf - ablation.morf - ablation.delta).abs().max() < 0.021


def test_the_ablation_holds_every_row():
    counts = paper.table_a3().groupby(["data", "family"]).layer.agg(["nunique", "min", "max"])
    assert (counts == (12, 1, 12)).all(axis=None)
    assert len(counts) == 6


@pytest.mark.parametrize("data", ["sst", "imdb"])
def test_bypassing_every_layer_is_cp_lrp(data):
    ablation = paper.table_a3().query("data == @data").set_index(["family", "layer"])
    cp_lrp = paper.table2().loc[(data, "cp-lrp"), "r"]
    for row in (("front", 12), ("back", 1)):
        assert ablation.loc[row, "loo_r"] == pytest.approx(cp_lrp, abs=0.011)
