"""Who leads, and whether the number of texts that is said to decide it does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lrputils.report.leading import ALIKE, CLEAR, FEWEST, MARGIN, about, lead, needed, pilots
from lrputils.report.tables import CANNOT_TELL

QUICK = {"resamples": 400}


def drawn(means, texts, seed, spread=0.1):
    """r of methods by text: what texts share, and noise of their own."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, 0.3, (texts, 1))
    noise = generator.normal(0, spread, (texts, len(means)))
    return pd.DataFrame(shared + noise + list(means.values()), columns=list(means))


def test_the_best_leads_where_its_distance_is_clear():
    found = lead(drawn({"a": 0.5, "b": 0.8, "c": 0.6}, 60, 0), **QUICK)
    assert (found.best, found.outcome, found.rival) == ("b", CLEAR, "c")
    assert found.difference.low > 0
    assert str(found).startswith("Use b: ahead of all others, of c by +0.")


def test_methods_within_the_margin_are_alike():
    found = lead(drawn({"a": 0.700, "b": 0.702, "c": 0.2}, 400, 1, spread=0.01), **QUICK)
    assert found.outcome == ALIKE
    assert {found.best, found.rival} == {"a", "b"}
    assert "alike within 0.02" in str(found)


def test_few_texts_decide_nothing():
    means = {"a": 0.9, "b": 0.1}
    assert lead(drawn(means, FEWEST - 1, 2), **QUICK).outcome == CANNOT_TELL
    assert lead(drawn(means, FEWEST, 2), **QUICK).outcome == CLEAR
    assert "n too small, about 10 texts" in str(lead(drawn(means, 5, 2), **QUICK))


def test_what_has_no_value_is_left_out():
    found = drawn({"a": 0.9, "b": 0.5, "c": 0.7}, 40, 3)
    found["c"], found.loc[0, "a"] = np.nan, np.nan
    answer = lead(found, **QUICK)
    assert (answer.best, answer.rival, answer.mean.used) == ("a", "b", 39)
    assert str(lead(found[["a"]], **QUICK)) == "a: nothing else costs as little."
    with pytest.raises(ValueError, match="no text has a correlation"):
        lead(found[["c"]])


def test_equals_are_seldom_called_clear():
    """Of five alike methods, one is called clearly best in 5% of the draws at most."""
    means = dict.fromkeys("abcde", 0.7)
    told = [lead(drawn(means, 20, seed), **QUICK).outcome for seed in range(120)]
    assert told.count(CLEAR) <= 0.05 * 120 + 2 * np.sqrt(120 * 0.05 * 0.95)


@pytest.mark.parametrize("gap", [0.04, 0.0], ids=["apart", "alike"])
def test_the_texts_that_are_needed_suffice(gap):
    """With so many the answer comes in four draws of five or more, with a third in far fewer."""
    means, spread = {"a": 0.7 + gap, "b": 0.7}, 0.1
    typical = drawn(means, 20_000, 0, spread)
    texts = needed(typical.a - typical.b, MARGIN)
    shares = []
    for count in (texts, texts // 3):
        told = [lead(drawn(means, int(count), 1 + s, spread), **QUICK) for s in range(80)]
        shares.append(np.mean([answer.outcome != CANNOT_TELL for answer in told]))
    assert 0.68 < shares[0] < (0.93 if gap else 1.01)
    assert shares[1] < shares[0] - 0.2


def test_needed_knows_its_limits():
    alike = pd.Series([0.1, -0.1] * 10)
    assert needed(alike) == np.inf
    assert needed(alike, MARGIN) < np.inf
    assert np.isnan(needed(pd.Series([0.1])))
    assert needed(pd.Series([0.5, 0.5001])) == FEWEST
    assert about(np.inf) == "more than a million"
    assert about(np.nan) == "two or more"
    assert [about(n) for n in (10, 141, 5678)] == ["about 10", "about 150", "about 5,700"]


def test_pilots_decide_more_often_with_more_texts_and_seldom_wrongly():
    many = drawn({"a": 0.75, "b": 0.7}, 600, 4)
    found = pilots(many, [10, 40, 160], draws=30, **QUICK)
    assert found.value.is_monotonic_increasing
    assert found.value[160] > 0.9
    assert found.wrong.max() <= 0.1
