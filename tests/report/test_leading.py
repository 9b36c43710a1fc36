"""Who leads, and whether the number of texts that is said to decide it does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lrputils.report.leading import ALIKE, CLEAR, FEWEST, MARGIN, about, lead, needed, pilots
from lrputils.report.tables import CANNOT_TELL


def drawn(means, texts, seed, spread=0.1):
    """r of methods by text: what texts share, and noise of their own."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, 0.3, (texts, 1))
    noise = generator.normal(0, spread, (texts, len(means)))
    return pd.DataFrame(shared + noise + list(means.values()), columns=list(means))


def test_the_best_leads_where_its_distance_is_clear():
    found = lead(drawn({"a": 0.5, "b": 0.8, "c": 0.6}, 60, 0))
    assert (found.best, found.outcome, found.rival) == ("b", CLEAR, "c")
    assert found.difference.low > 0
    assert str(found).startswith("Use b: ahead of all others, of c by +0.")


def test_methods_within_the_margin_are_alike():
    found = lead(drawn({"a": 0.700, "b": 0.702, "c": 0.2}, 400, 1, spread=0.01))
    assert found.outcome == ALIKE
    assert {found.best, found.rival} == {"a", "b"}
    assert "alike within 0.02" in str(found)


def test_few_texts_decide_nothing():
    means = {"a": 0.9, "b": 0.1}
    assert lead(drawn(means, FEWEST - 1, 2)).outcome == CANNOT_TELL
    assert lead(drawn(means, FEWEST, 2)).outcome == CLEAR
    assert "n too small, about 20 texts" in str(lead(drawn(means, 5, 2)))


def test_what_has_no_value_is_left_out():
    found = drawn({"a": 0.9, "b": 0.5, "c": 0.7}, 40, 3)
    found["c"], found.loc[0, "a"] = np.nan, np.nan
    answer = lead(found)
    assert (answer.best, answer.rival, answer.mean.used) == ("a", "b", 39)
    assert str(lead(found[["a"]])) == "a: nothing else costs as little."
    with pytest.raises(ValueError, match="no text has a correlation"):
        lead(found[["c"]])


def test_equals_are_seldom_called_clear():
    """Where methods tie, one is called clearly best in 5% of the draws: Student's, not 10%."""
    for names in ("ab", "abcde"):
        tied = drawn(dict.fromkeys(names, 0.7), 3_000, 5)
        found = pilots(tied, [FEWEST, 50], draws=4_000)
        assert found["false"].max() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 4_000)


def test_pilots_say_of_each_draw_what_lead_says():
    """Many draws are judged at once; each as `lead` judges it alone."""
    many = drawn({"a": 0.72, "b": 0.7, "c": 0.69}, 40, 7)
    found = pilots(many, [30], draws=50).loc[30]
    order = np.random.default_rng(0).random((50, 40)).argsort(axis=1)[:, :30]
    told = [lead(many.iloc[texts]) for texts in order]
    undecided = [answer.texts for answer in told if answer.outcome == CANNOT_TELL]
    assert found.value == 1 - len(undecided) / 50
    assert found.needed == np.median(undecided)
    wrong = [a.outcome == CLEAR and a.best != many.mean().idxmax() for a in told]
    assert found.wrong == np.mean(wrong)


@pytest.mark.parametrize("gap", [0.04, 0.0], ids=["apart", "alike"])
def test_the_texts_that_are_needed_suffice(gap):
    """With so many the answer comes in four draws of five or more, with a third in far fewer."""
    means, spread = {"a": 0.7 + gap, "b": 0.7}, 0.1
    typical = drawn(means, 20_000, 0, spread)
    texts = int(needed(typical.a - typical.b, MARGIN))
    shares = pilots(typical, [texts, texts // 3], draws=80).value
    assert 0.68 < shares[texts] < (0.93 if gap else 1.01)
    assert shares[texts // 3] < shares[texts] - 0.2


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
    found = pilots(many, [20, 40, 160], draws=1_000)
    assert found.value.is_monotonic_increasing
    assert found.value[160] > 0.9
    assert found.wrong.max() <= 0.1
