"""Length: agreement and cost over it, and the figures that show them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lrputils import stats
from lrputils.attribution import attribute
from lrputils.removal.perturbation import Curves
from lrputils.report.figures import lengths as draw
from lrputils.study import cost

TEXTS = ("a film that is never dull and a book that is not bad", "dull", "far too long " * 5)


@pytest.fixture(scope="module")
def costs(placeholder):
    return cost.at_lengths(placeholder, TEXTS, [12, 6, 12], ["attnlrp", "rollout"])


def test_only_texts_that_reach_the_longest_length_take_part(costs):
    assert sorted(costs.position.unique()) == [0, 2]
    assert sorted(costs.tokens.unique()) == [6, 12]
    assert list(costs.method.unique()) == ["loo", "attnlrp", "rollout"]
    assert len(costs) == 2 * 2 * 3
    assert (costs.seconds > 0).all()


def test_r_is_that_of_the_text_cut_there(placeholder, costs):
    inputs = placeholder.encode([TEXTS[2]], 6, truncate=True)
    loo, ours = (attribute(placeholder.model, inputs, m) for m in ("loo", "attnlrp"))
    row = costs.query("position == 2 and tokens == 6 and method == 'attnlrp'").iloc[0]
    assert row.r == pytest.approx(stats.pearson(ours, loo)[0], abs=1e-4)
    assert np.allclose(costs[costs.method == "loo"].r, 1)


def test_mistakes_are_named(placeholder):
    with pytest.raises(ValueError, match="no text has 400 tokens; the longest has 17"):
        cost.at_lengths(placeholder, TEXTS, [4, 400])
    with pytest.raises(ValueError, match="magic"):
        cost.at_lengths(placeholder, TEXTS, [4], ["magic"])


def test_growth_finds_the_exponent():
    tokens = np.array([16, 64, 256] * 2)
    seconds = np.concatenate([3e-4 * tokens[:3] ** 2.0, 5e-3 * tokens[3:] ** 1.0])
    frame = pd.DataFrame({"tokens": tokens, "seconds": seconds, "method": ["loo"] * 3 + ["x"] * 3})
    assert cost.growth(frame).to_dict() == pytest.approx({"loo": 2.0, "x": 1.0})


def test_agreement_pairs_the_texts():
    rows = [
        {"position": p, "tokens": n, "method": m, "r": r}
        for p, (short, long) in enumerate([(0.2, 0.1), (0.8, 0.7), (0.5, 0.4)])
        for n, r in ((8, short), (32, long))
        for m in ("loo", "cp-lrp")
    ]
    table = cost.agreement(pd.DataFrame(rows))
    assert list(table.index) == ["cp-lrp"]
    row = table.loc["cp-lrp"]
    assert row["8 tokens"] == pytest.approx(0.5)
    assert row["32 tokens"] == pytest.approx(0.4)
    # Every text loses the same: no doubt about the change, however far the texts are apart.
    assert [row.change, row.low, row.high] == pytest.approx([-0.1] * 3)


def test_one_text_has_a_change_and_no_interval():
    rows = [{"position": 0, "tokens": n, "method": "x", "r": n / 10} for n in (4, 8)]
    row = cost.agreement(pd.DataFrame(rows)).loc["x"]
    assert row.change == pytest.approx(0.4)
    assert np.isnan([row.low, row.high]).all()


def test_trend_is_spearmans_over_texts():
    generator = np.random.default_rng(5)
    tokens = generator.integers(20, 500, 60)
    r = pd.DataFrame({"falls": -tokens / 600 + generator.normal(0, 0.3, 60), "nothing": np.nan})
    r.loc[3, "falls"] = np.nan
    table = cost.trend(r, tokens)
    kept = r.falls.notna()
    expected = scipy.stats.spearmanr(r.falls[kept], tokens[kept]).statistic
    falls = table.loc["falls"]
    assert falls.rho == pytest.approx(expected)
    assert falls.low < falls.rho < falls.high < 0
    assert falls.texts == 59
    assert table.loc["nothing", ["rho", "low", "high"]].isna().all()


def test_trend_has_no_answer_where_all_texts_have_one_length():
    table = cost.trend(pd.DataFrame({"x": [0.1, 0.4, 0.2, 0.3]}), [128] * 4)
    assert np.isnan(table.rho["x"])


def test_curves_meet_at_shares_of_their_texts():
    read = draw.at_shares(
        [np.array([4.0, 0.0]), np.array([4.0, 3, 2, 1, 0])], np.array([0, 0.5, 1])
    )
    assert np.allclose(read, [[4, 2, 0], [4, 2, 0]])


def test_every_method_has_two_curves_from_the_same_start():
    curves = {
        m: [Curves(np.array([3.0, 1, 0]), np.array([3.0, 2, 0])), Curves(*np.ones((2, 2)))]
        for m in ("loo", "mine")
    }
    figure = draw.removal_curves(curves, labels={"loo": "LOO"})
    upper, lower = figure.axes
    for axes in (upper, lower):
        assert [line.get_label() for line in axes.lines] == ["LOO", "mine"]
    assert upper.lines[0].get_ydata()[16] == pytest.approx((2 + 1) / 2)
    assert lower.lines[0].get_ydata()[16] == pytest.approx((1 + 1) / 2)


def test_one_text_has_curves_without_a_band():
    one = {"loo": [Curves(np.array([3.0, 0]), np.array([3.0, 0]))]}
    assert not draw.removal_curves(one, labels={}).axes[0].collections


@pytest.mark.parametrize("methods", [["attnlrp"], ["ig", "attnlrp", "cp-lrp"]])
def test_agreement_has_a_panel_a_method(costs, methods):
    generator = np.random.default_rng(0)
    recorded = pd.DataFrame(generator.uniform(-1, 1, (9, len(methods))), columns=methods)
    recorded.iloc[0, 0] = np.nan
    tokens = generator.integers(20, 300, 9)
    figure = draw.agreement_by_length(recorded, tokens, costs, labels={})
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == methods
    means = costs[costs.method == "attnlrp"].groupby("tokens").r.mean()
    lines = [np.asarray(line.get_ydata()) for line in shown[methods.index("attnlrp")].lines]
    assert any(len(y) == 2 and np.allclose(y, means) for y in lines)


def test_cost_shows_medians_on_logarithmic_axes(costs):
    axes = draw.cost_by_length(costs, labels={"loo": "LOO"}).axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [line.get_label() for line in axes.lines] == ["LOO", "attnlrp", "rollout"]
    middle = costs[costs.method == "loo"].groupby("tokens").seconds.median()
    assert np.allclose(axes.lines[0].get_ydata(), middle)


def test_the_size_of_loo_is_its_mean_over_the_words():
    row = {"method": "loo", "removal": "attention-mask", "id": 7}
    row |= {"scores": np.array([9, -1, 3, 9.0]), "content": np.array([False, True, True, False])}
    other = {**row, "method": "attnlrp", "removal": ""}
    found = cost.loo_size(pd.DataFrame([row, other]))
    assert found.to_dict("index") == {7: {"tokens": 4, "mean |LOO|": 2}}
