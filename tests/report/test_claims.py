"""The claims in one table: every number against one computed from the rows by hand."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lrputils import linear_attention, paper
from lrputils.book.layout import find_book
from lrputils.report import claims
from lrputils.report.figures.claims import printed_and_recorded
from lrputils.runs import results

HOME = find_book().root / "results"


@pytest.fixture(scope="module")
def recordings():
    mnist = results.load("mnist", "linear-attention", HOME)
    return mnist, {"sst": results.load("sst", "minilm-sst2", HOME)}


@pytest.fixture(scope="module")
def table(recordings):
    mnist, texts = recordings
    return claims.claims(mnist, texts, linear_attention.Setting(scaling="unit"))


def test_means_and_differences_are_those_of_the_rows(table, recordings):
    rows = recordings[1]["sst"].rows
    rows = rows[(rows.family == "") & (rows.readout == "word")]
    by_method = {name: part.set_index("id") for name, part in rows.groupby("method")}
    attn, cp = by_method["attnlrp"].r_normalised, by_method["cp-lrp"].r_normalised
    row = table.loc["SST: AttnLRP − CP-LRP"]
    assert row.recorded == pytest.approx((attn - cp).mean(), abs=1e-6)
    assert table.loc["SST: AttnLRP vs LOO"].recorded == pytest.approx(attn.mean(), abs=1e-6)
    assert row.paper == pytest.approx(0.22 - 0.52)
    assert row.low < row.recorded < row.high


def test_the_layers_claim_compares_halves(table, recordings):
    rows = recordings[1]["sst"].rows
    single = rows[(rows.family == "single") & (rows.readout == "word")].copy()
    single["late"] = single.layer > single.layer.nunique() // 2
    late, early = (single[single.late == half].r.mean() for half in (True, False))
    row = table.loc["SST: later − earlier layers"]
    assert row.raw == pytest.approx(late - early, abs=1e-5)
    a3 = paper.table_a3().query("data == 'sst' and family == 'single'").sort_values("layer").loo_r
    assert row.paper == pytest.approx(np.mean(a3[6:]) - np.mean(a3[:6]))


def test_every_claim_has_its_verdict(table):
    differences = table.index.str.contains("−")
    for _, row in table[~differences].iterrows():
        inside = row.low - row.paper >= -0.05 and row.high - row.paper <= 0.05
        assert (row.verdict == "agrees") == inside
        assert row.verdict in ("agrees", "disagrees", "cannot tell")
    for _, row in table[differences].iterrows():
        undecided = row.low <= 0 <= row.high
        expected = "holds" if row.recorded * row.paper > 0 else "opposite"
        assert row.verdict == ("cannot tell" if undecided else expected)


def test_the_figure_shows_every_number(table):
    figure = printed_and_recorded(table)
    (axes,) = figure.axes
    points = np.concatenate([x.get_xdata() for x in axes.lines if x.get_marker() != "None"])
    for column in ("paper", "recorded", "raw"):
        assert np.isin(np.round(table[column], 9), np.round(points, 9)).all()
    assert [label.get_text() for label in axes.get_yticklabels()] == list(table.index)
    assert not plt.get_fignums()
