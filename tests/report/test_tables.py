import math

import numpy as np
import pandas as pd
import pytest

from lrputils import paper
from lrputils.report import tables
from lrputils.report.display import show
from lrputils.stats import estimate
from lrputils.stats import table as stats_table


def test_difference_is_this_run_minus_paper_with_the_interval_shifted():
    table = tables.compare({"CP-LRP": (0.70, 0.64, 0.76)}, {"CP-LRP": 0.52})
    row = table.loc["CP-LRP"]
    assert row["difference"] == pytest.approx(0.18)
    assert (row["difference low"], row["difference high"]) == pytest.approx((0.12, 0.24))
    assert list(table.columns[:2]) == ["paper", "this run"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.04, 0.05, tables.AGREES),
        (0.06, 0.30, tables.DISAGREES),
        (-0.30, -0.06, tables.DISAGREES),
        (-0.01, 0.06, tables.CANNOT_TELL),
        (-0.50, 0.50, tables.CANNOT_TELL),
        (math.nan, math.nan, ""),
    ],
)
def test_verdict_follows_from_the_interval_and_the_margin(low, high, expected):
    assert tables.verdict(low, high) == expected


def test_a_wider_margin_only_moves_verdicts_towards_agreement():
    rank = [tables.DISAGREES, tables.CANNOT_TELL, tables.AGREES]
    for low, high in np.random.default_rng(0).uniform(-0.3, 0.3, (50, 2)):
        low, high = sorted((low, high))
        found = [rank.index(tables.verdict(low, high, margin)) for margin in (0.01, 0.1, 0.3)]
        assert found == sorted(found)


def test_takes_estimates_series_and_recorded_runs():
    measured = {"a": estimate([0.1, 0.2, 0.3]), "b": estimate([0.5, 0.6])}
    table = tables.compare(measured, pd.Series({"a": 0.2}), recorded={"b": 0.55})
    assert table.loc["a", "this run"] == pytest.approx(0.2)
    assert table.loc["b", "recorded"] == 0.55
    assert math.isnan(table.loc["b", "paper"])
    assert table.loc["b", "verdict"] == ""
    assert "[" in show(table, intervals=tables.INTERVALS).rounded().loc["a", "this run"]


def test_a_number_without_interval_cannot_tell():
    assert tables.compare({"a": 0.2}, {"a": 0.2}).loc["a", "verdict"] == tables.CANNOT_TELL


def test_refuses_published_rows_that_were_not_measured():
    with pytest.raises(ValueError, match=r"'CP-LRP'.*this run has \['AttnLRP'\]"):
        tables.compare({"AttnLRP": 0.2}, {"CP-LRP": 0.5})


def test_refuses_an_interval_that_does_not_hold_its_value():
    with pytest.raises(ValueError, match=r"Row 'a': 0\.9 is not within"):
        tables.compare({"a": (0.9, 0.1, 0.5)}, {"a": 0.5})
    with pytest.raises(ValueError, match="margin=0"):
        tables.verdict(0, 0, margin=0)


def test_table1_has_the_nine_printed_numbers_by_formula():
    table = paper.table1()
    assert len(table) == 9
    assert (table.groupby("pair")["r"].nunique() == 1).all()
    r = table.groupby("pair")["r"].first()
    assert r["(QKᵀ)V vs Q(KᵀV)"] == 0.7865
    assert {r["(QKᵀ)V vs LOO"], r["Q(KᵀV) vs LOO"]} == {0.0730, -0.0698}


def test_a_recorded_run_has_an_interval_and_a_verdict_of_its_own():
    table = tables.compare(
        {"a": (0.5, 0.4, 0.6), "b": (0.1, 0.0, 0.2)},
        {"a": 0.5, "b": 0.9},
        {"a": (0.51, 0.49, 0.53)},
    )
    assert table.loc["a", "recorded verdict"] == tables.AGREES
    assert table.loc["b", "recorded verdict"] == ""
    shown = show(table, digits=2).rounded()
    assert shown.loc["a", "recorded"] == "0.51 [0.49, 0.53]"
    assert shown.loc["a", "this run"] == "0.50 [0.40, 0.60]"
    assert not {"low", "recorded low"} & set(shown)
    less = show(table.drop(columns=["difference", "recorded"]), digits=2).rounded()
    assert less.loc["a", "this run"] == "0.50 [0.40, 0.60]"


def test_an_interval_that_could_not_be_drawn_gives_no_verdict():
    table = tables.compare({"a": (0.5, math.nan, math.nan)}, {"a": 0.5})
    assert table.loc["a", "verdict"] == ""
    assert show(table, digits=1).rounded().loc["a", "this run"] == "0.5"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1.1, 1.2, "yes"), (0.1, 0.9, "no"), (0.9, 1.1, tables.CANNOT_TELL)],
)
def test_an_interval_lies_above_a_bound_or_not(low, high, expected):
    assert tables.above(low, high, 1) == expected


def test_estimates_stand_side_by_side_with_their_intervals():
    parts = {"a": stats_table({"x": estimate([1, 2])}), "b": stats_table({"x": estimate([3, 4])})}
    shown = show(tables.side_by_side(parts), digits=1).rounded()
    assert shown.loc["x"].tolist() == ["1.5 [-4.9, 7.9]", "3.5 [-2.9, 9.9]"]
