"""The claims over the grid and beside the paper: every number against one computed by hand."""

import numpy as np
import pandas as pd
import pytest

from lrputils import paper
from lrputils.book.layout import find_book
from lrputils.report import claims
from lrputils.runs import results
from lrputils.study import specifications
from lrputils.study.softmax_errors.ablation import COLUMNS

HOME = find_book().root / "results"
RUN = ("six layers", "SST-2")
SMALL = ["rules", "read-out", "tokens", "normalisation", "removal", "coefficient"]


@pytest.fixture(scope="module")
def runs():
    """Correlations of eight texts, drawn; CP-LRP's sum-to-one ones lie far above AttnLRP's."""
    draws = np.random.default_rng(0)
    choices = [
        [*specifications.VARIED_RULES, "activation=gradient"],
        ["word", "sum", "post-norm"],
        specifications.TOKENS,
        specifications.NORMALISATIONS,
        ["attention-mask", "zero"],
        ["Pearson", "Kendall"],
    ]
    methods = ["attnlrp", "half-value", "whole-value", "identity", "cp-lrp"]
    columns = pd.MultiIndex.from_product([methods, *choices], names=["method", *SMALL])
    found = pd.DataFrame(draws.normal(0.3, 0.05, (8, len(columns))), columns=columns)
    cp = columns.get_level_values("method") == "cp-lrp"
    found.loc[:, cp] += 0.2
    found.loc[:, cp & (columns.get_level_values("normalisation") == "raw")] -= 0.4
    return {("small", "SST-2"): found, ("large", "IMDB"): found + 0.0}


@pytest.fixture(scope="module")
def texts():
    return {RUN: results.load("sst", "minilm-sst2", HOME)}


def test_the_grid_has_the_runs_and_the_removal_they_share(runs):
    large = runs["large", "IMDB"].drop(columns="zero", level="removal")
    large.columns = large.columns.remove_unused_levels()
    table = claims.grid({**runs, ("large", "IMDB"): large}, "cp-lrp", "attnlrp")
    assert len(table) == 2 * 3 * 3 * 4 * 2 * 2
    assert set(table.index.get_level_values("removal")) == {"attention-mask"}
    spot = ("small", "SST-2", "norm=held", "sum", "all", "raw", "attention-mask", "Pearson")
    own = runs["small", "SST-2"]
    expected = (own[("cp-lrp", *spot[2:])] - own[("attnlrp", *spot[2:])]).mean()
    assert table.loc[spot].value == pytest.approx(expected, abs=1e-6)


def test_conclusions_count_and_reversals_name_what_turns_them(runs):
    table = claims.grid(runs, "cp-lrp", "attnlrp")
    row = claims.conclusions({"claim": table}).loc["claim"]
    assert row.specifications == len(table) == 2 * 3 * 3 * 4 * 2 * 2 * 2
    assert row.holds == pytest.approx(50)
    assert row.opposite == pytest.approx(50)
    flips = specifications.reversals(table).reversed
    assert flips["normalisation"] == 1
    assert flips[["tokens", "read-out"]].tolist() == [0, 0]
    assert not {"model", "data"} & set(flips.index)  # neither varies alone


def test_the_layers_claim_compares_halves_at_each_read_out(texts):
    table = claims.later_layers(texts)
    assert len(table) == 9
    rows = texts[RUN].rows
    columns = {**COLUMNS, "without special tokens": "r_content"}
    for (_, _, readout, convention), found in table.iterrows():
        column = columns[convention]
        single = rows[(rows.family == "single") & (rows.readout == readout)]
        late = single.layer > single.layer.nunique() // 2
        expected = single[column][late].mean() - single[column][~late].mean()
        assert found.value == pytest.approx(expected, abs=1e-5)


def test_delta_is_compared_in_sign_only(texts):
    rows = texts[RUN].rows
    rows = rows[(rows.family == "") & (rows.readout.isin(["word", ""]))]
    delta = rows[rows.method.isin(["attnlrp", "cp-lrp", "loo"])].groupby("method").delta.mean()
    row = claims.along_curves(texts).loc["AttnLRP − CP-LRP: SST-2, six layers"]
    assert row.recorded == pytest.approx(delta["attnlrp"] - delta["cp-lrp"], abs=1e-5)
    assert row.paper == pytest.approx(0.04)
    assert row.low < row.recorded < row.high


@pytest.mark.parametrize(
    ("printed", "low", "high", "said"),
    [
        (0.04, 0.1, 0.2, "holds"),
        (-0.04, 0.1, 0.2, "opposite"),
        (0.04, -0.1, 0.2, "cannot tell"),
        (0.26 - 0.25, 0.1, 0.2, ""),  # two rounded numbers carry no sign here
    ],
)
def test_a_sign_needs_a_printed_one(printed, low, high, said):
    assert claims.sign(printed, low, high) == said


def test_levels_agree_only_where_they_could_have_disagreed(runs):
    table = claims.levels(runs)
    printed = paper.table2().r
    assert set(table.paper) == {
        printed[data, method] for data in ("sst", "imdb") for method in ("attnlrp", "cp-lrp")
    }
    for row in table.itertuples():
        inside = abs(row.low - row.paper) <= 0.05 and abs(row.high - row.paper) <= 0.05
        apart = row.low > row.paper + 0.05 or row.high < row.paper - 0.05
        wide = row.high - row.low > 0.1
        undecided = "too wide" if wide else "cannot tell"
        assert row.verdict == ("agrees" if inside else "disagrees" if apart else undecided)
    assert "agrees" in set(table.verdict)


TWICE = sorted(claims.recorded("maps").keys() & claims.recorded().keys())


@pytest.mark.parametrize("run", TWICE, ids=", ".join)
def test_both_recordings_of_a_run_give_the_same_correlations(run):
    texts = claims.recorded()
    found = specifications.agreement(claims.recorded("maps")[run].rows, ["Pearson"])
    rows = texts[run].rows
    columns = {"r": ("all", "raw"), "r_content": ("neither", "raw")}
    columns["r_normalised"] = ("all", "sum to one")
    for method in ("attnlrp", "cp-lrp"):
        for readout in ("word", "sum", "post-norm"):
            own = rows[(rows.method == method) & (rows.readout == readout) & (rows.family == "")]
            own = own.set_index("id")
            for column, choices in columns.items():
                label = (method, "default", readout, *choices, "attention-mask", "Pearson")
                other = found[label].reindex(own.index)
                gap = (other - own[column]).abs()
                assert gap.notna().any()
                assert gap.max() < 1e-3
