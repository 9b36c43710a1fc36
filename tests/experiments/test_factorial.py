"""Which rule carries the agreement: the theorem, and the 16 composites."""

import pytest
import torch

import lrputils as lrp
from experiments import frame
from experiments.recordings.factorial import FACTORS, composites
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT
from lrputils.study.agreement import WORDS, agreement
from tests import tiny


def test_the_corners_are_the_methods():
    found = composites()
    assert len(found) == 16
    assert found[True, True, True, False] == ATTN_LRP
    assert found[True, True, False, True] == CP_LRP
    assert found[False, False, False, False] == GRADIENT


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_without_the_norm_s_rule_nothing_is_left_at_the_sum(name):
    model, inputs = tiny.build(name), tiny.texts()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-12
    given = {"readout": "sum"}
    scale = lrp.attribute(model, inputs, ATTN_LRP, **given).abs().max()
    for composite in (GRADIENT, ATTN_LRP.but(norm="gradient"), CP_LRP.but(norm="gradient")):
        left = lrp.attribute(model, inputs, composite, **given).abs().max()
        # Another rule changes what flows back to the norm, not that the norm passes nothing along.
        assert left < 1e-6 * scale
    assert lrp.attribute(model, inputs, CP_LRP, **given).abs().max() > 1e-2 * scale
    words = lrp.attribute(model, inputs, GRADIENT, readout="word").abs().max()
    assert words > 1e-3 * scale  # minus the positions' part


@pytest.mark.parametrize("place", ["sum", "word", "post-norm"])
def test_corners_repeat_the_recorded_maps(place):
    """AttnLRP and CP-LRP stand in another recording, too: the same r on the same texts."""
    maps = frame.read_maps("maps", runs=["minilm-sst2", "minilm-imdb"])
    maps = maps[(maps.options == "") & maps.removal.isin(["", "attention-mask"])]
    maps = maps[maps.method.isin(["loo", "attnlrp", "cp-lrp"]) & maps.readout.isin(["", place])]
    r = agreement(maps, [WORDS], ["raw"]).set_index(["model", "data", "id"])
    cells = frame.read_rows("factorial").query("readout == @place")
    cells = cells.pivot(index=["model", "data", "id"], columns=[*FACTORS], values="r_content")
    for method, corner in (("attnlrp", (1, 1, 1, 0)), ("cp-lrp", (1, 1, 0, 1))):
        other = r[r.method == method].r
        own = cells[tuple(map(bool, corner))].reindex(other.index)
        assert (own - other).abs().max() < 2e-3
