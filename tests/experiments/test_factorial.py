"""Which rule carries the agreement: the theorem, the 16 composites, and what the rows say."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from experiments import frame, spoken
from experiments.recordings.factorial import FACTORS, composites
from lrputils import stats
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


@pytest.fixture(scope="module")
def cells():
    asked = spoken.read_prompted(kind="factorial").assign(data="prompts")
    rows = pd.concat([frame.read_rows("factorial"), asked])
    keys = ["model", "data", "id"]
    return {
        place: part.pivot(index=keys, columns=[*FACTORS], values="r_content")
        for place, part in rows.groupby("readout")
    }


@pytest.mark.parametrize("place", ["sum", "word", "post-norm"])
def test_corners_repeat_the_recorded_maps(cells, place):
    """AttnLRP and CP-LRP stand in another recording, too: the same r on the same texts."""
    maps = frame.read_maps("maps", runs=["minilm-sst2", "minilm-imdb"])
    maps = maps[(maps.options == "") & maps.removal.isin(["", "attention-mask"])]
    maps = maps[maps.method.isin(["loo", "attnlrp", "cp-lrp"]) & maps.readout.isin(["", place])]
    r = agreement(maps, [WORDS], ["raw"]).set_index(["model", "data", "id"])
    for method, corner in (("attnlrp", (1, 1, 1, 0)), ("cp-lrp", (1, 1, 0, 1))):
        other = r[r.method == method].r
        own = cells[place][tuple(map(bool, corner))].reindex(other.index)
        assert (own - other).abs().max() < 2e-3


def test_the_norm_s_rule_carries_most_of_it_in_every_run(cells):
    """What chapter 3 says of its table, at every read-out: shares, and what closing costs."""
    for place, wide in cells.items():
        for run, r in wide.groupby(["model", "data"]):
            shares = _shapley(r)
            every = r[True, True, True, False] - r[False, False, False, False]
            assert np.allclose(sum(shares.values()), every, atol=1e-5)
            norm = shares["norm"]
            rest = shares["activation"] + shares["halving"]
            assert stats.leads(norm - rest) == 1, (place, run)
            if place == "post-norm":  # where the theorem forces nothing
                without = r[True, True, True, False] - r[False, True, True, False]
                assert without.mean() > 0.36, run
            quarrel = r[True, True, True, False] - r[True, True, False, True]
            times = 2.9 if run[0] == spoken.MODELS["smollm2"] else 3
            assert norm.mean() > times * quarrel.mean(), (place, run)
            if run[1] == "prompts":
                continue
            closing = r[True, True, True, True] - r[True, True, True, False]
            told = stats.estimate(closing, method="t").high < 0
            assert told == (run != (frame.MPNET, "IMDB")), (place, run)


def _shapley(r):
    """The mean over orders of what each rule adds, by its definition."""
    names = FACTORS[:3]
    found = dict.fromkeys(names, 0.0)
    for order in permutations(names):
        on = dict.fromkeys(names, False)
        for name in order:
            before = r[*on.values(), False]
            on[name] = True
            found[name] = found[name] + (r[*on.values(), False] - before) / 6
    return found
