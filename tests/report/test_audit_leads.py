"""Who leads, what is said of it, and whether so many texts as are said to decide it do."""

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.report.answers import about_run, ahead
from lrputils.report.audit_answers import (
    ALIKE,
    CANNOT_TELL,
    CLEAR,
    FEWEST,
    FORECAST,
    MARGIN,
    MOST,
    TRACKS,
    Verdict,
    by_method,
    lead,
    needed,
    verdict,
)
from lrputils.report.audit_plan import Audited
from lrputils.report.audit_sentences import of_lead, of_verdict


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
    assert of_lead(found).startswith("b leads all others. The closest call is c, lower by 0.")


def test_methods_within_the_margin_are_alike_and_few_texts_decide_nothing():
    found = lead(drawn({"a": 0.700, "b": 0.702, "c": 0.2}, 400, 1, spread=0.01))
    assert (found.outcome, {found.best, found.rival}) == (ALIKE, {"a", "b"})
    assert "alike within 0.02" in of_lead(found)
    means = {"a": 0.9, "b": 0.1}
    assert lead(drawn(means, FEWEST - 1, 2)).outcome == CANNOT_TELL
    assert lead(drawn(means, FEWEST, 2)).outcome == CLEAR
    for texts in (1, 2, 5, FEWEST - 1):
        said = "too few texts to say how many would tell; 20 are the least."
        assert of_lead(lead(drawn(means, texts, 2))).split(" in mean; ")[1].startswith(said)


def test_what_has_no_value_is_left_out():
    found = drawn({"a": 0.9, "b": 0.5, "c": 0.7}, 40, 3)
    found["c"], found.loc[0, "a"] = np.nan, np.nan
    answer = lead(found)
    assert (answer.best, answer.rival, answer.mean.used) == ("a", "b", 39)
    assert of_lead(lead(found[["a"]])) == "a: nothing else costs as little."
    with pytest.raises(ValueError, match="no text has a correlation"):
        lead(found[["c"]])


@pytest.mark.parametrize("gap", [0.04, 0.0], ids=["apart", "alike"])
def test_the_texts_that_are_needed_suffice(gap):
    """With so many the answer comes in four draws of five or more, with a third in far fewer."""
    means, spread = {"a": 0.7 + gap, "b": 0.7}, 0.1
    typical = drawn(means, 20_000, 0, spread)
    enough = int(needed(typical.a - typical.b, MARGIN))
    for texts, least, most in ((enough, 0.68, 0.93 if gap else 1), (enough // 3, 0, 0.6)):
        some = [typical.sample(texts, random_state=seed) for seed in range(80)]
        assert least <= np.mean([lead(few).outcome != CANNOT_TELL for few in some]) <= most


def test_needed_knows_its_limits():
    alike = pd.Series([0.1, -0.1] * 10)
    assert needed(alike) == np.inf
    assert needed(alike, MARGIN) < np.inf
    assert np.isnan(needed(pd.Series([0.1])))
    assert needed(pd.Series([0.5, 0.5001])) == FEWEST
    open_ = lead(drawn({"a": 0.9, "b": 0.9}, FEWEST, 2))
    assert open_.outcome == CANNOT_TELL
    assert " in mean, but the interval holds zero; " in of_lead(open_)
    hardly = f"{MOST:,} texts would hardly tell, so take the cheaper one, if one is"
    few = f"{FEWEST} texts are too few to say how many would tell: take {FORECAST} or more"
    for texts, used, said in (
        (np.inf, FORECAST, hardly),
        (np.inf, FEWEST, few),
        (141, FEWEST, "about 150 texts would tell"),
        (141, 200, "more than these 200 texts would tell"),
    ):
        mean = open_.mean._replace(used=used)
        assert f"{said}." in of_lead(open_._replace(mean=mean, texts=texts))


def around(mean, reach):
    """Twenty values, half on each side: the standard error of their mean is reach / √19."""
    return mean + reach * np.tile([1, -1], 10)


def test_the_interval_of_a_lead_makes_up_for_the_number_of_rivals():
    """A mean of 2.25 standard errors; Student's t of 19 is 2.093 at 95%, 2.433 at 97.5%."""
    base = np.linspace(0.2, 0.6, 20)
    found = pd.DataFrame({"best": base, "close": base - around(0.1, 0.1 * 19**0.5 / 2.25)})
    assert lead(found).difference.low > 0
    answer = lead(found.assign(far=base - 0.5))
    assert (answer.outcome, answer.rival) == (CANNOT_TELL, "close")
    assert answer.difference.low == pytest.approx(0.1 * (1 - 2.4334 / 2.25), abs=1e-5)


def test_the_interval_of_a_verdict_makes_up_for_the_number_of_maps():
    """Above the bound by 2.4 standard errors; Student's t is 2.093 at 95%, 2.759 at 98.75%."""
    r = {("attnlrp", "sum"): around(TRACKS + 0.05, 0.05 * 19**0.5 / 2.4)}
    r |= {("attnlrp", "word"): r["attnlrp", "sum"] - 0.3, ("loo", "word"): np.ones(20)}
    r |= {("cp-lrp", place): np.full(20, 0.1) for place in ("word", "sum")}
    rows = pd.DataFrame(
        [(text, *key, "", r[key][text]) for text in range(20) for key in sorted(r, reverse=True)],
        columns=["position", "method", "readout", "family", "r_content"],
    )
    found = verdict(Audited(rows))
    assert (found.method, found.readout, found.answer) == ("attnlrp", "sum", CANNOT_TELL)
    assert found.r.low == pytest.approx(TRACKS + 0.05 * (1 - 2.7586 / 2.4), abs=1e-5)


def test_a_mean_that_few_texts_make_is_no_lead():
    """The mean leads; on half of the texts it does not, or one unseen text would undo it."""
    values = np.concatenate([np.full(15, 0.6), np.full(15, -0.02)])
    table = pd.DataFrame({"a": values, "b": 0.0})
    found = lead(table)
    assert (found.outcome, found.difference.low > 0) == (CANNOT_TELL, True)
    assert f", but {0.5:.0%} of 30 texts agree, too few to be sure of most; " in of_lead(found)
    small = pd.DataFrame({"a": np.linspace(0.03, 0.05, 30), "b": 0.0})
    found = lead(small)
    assert (found.outcome, found.difference.low > 0) == (CANNOT_TELL, True)
    assert 30 < found.texts < MOST
    assert "but one text more against it" in of_lead(found)


@pytest.mark.parametrize(
    ("shift", "texts", "said"),
    [
        (1, 40, "A leads"),
        (-1, 40, "B leads"),
        (0, 40, "neither leads, since the interval holds zero"),
        (-0.09, 40, "neither leads, since 50% of 40 texts agree, too few"),
        (0.11, 20, "neither leads, since one text more against it"),
        (1, 19, "too few"),
    ],
)
def test_a_direction_is_said_only_where_the_verdict_and_the_texts_carry_it(shift, texts, said):
    values = shift + np.tile([-0.1, 0.1], 20)[:texts]
    told = ahead("A", "B", stats.paired_difference(values, np.zeros(texts)))
    assert told.startswith(f"A − B is {values.mean():+.2f} [")
    assert told.partition("]: ")[2].startswith(said)


def test_an_answer_is_of_a_reader_s_run_alone():
    assert about_run("mine", 20, "A", "B", own=True) == "On mine, 20 texts: A; B."
    assert about_run("mine", 6, "A", own=True).endswith("20 texts are the least that decide.")
    assert about_run("mine", 872, "A", own=False) == ""


def test_one_text_is_one_and_has_no_interval(clf):
    assert about_run("mine", 1, "A", own=True).startswith("On mine, 1 text: A.")
    one = lrp.evaluate(clf, ["a film"], ["loo", "attnlrp"])
    assert repr(one).startswith("1 text: mean r")
    r = stats.estimate(np.array([0.9]))
    alone = Verdict(CANNOT_TELL, r, np.inf, 0.0, "attnlrp", "word")
    assert "mean r 0.90, n = 1." in of_verdict(alone)


def test_without_an_r_no_two_are_compared():
    told = ahead("A", "B", stats.paired_difference([np.nan], [0.0]))
    assert told == "A and B cannot be compared: a text of one token has no correlation"


def test_each_map_by_itself_is_told_whether_it_tracks():
    means = np.array([0.9, 0.2, 0.71])
    r = np.random.default_rng(0).normal(means, 0.02, (60, 3))
    r = pd.DataFrame(r, columns=["a", "b", "c"])
    r.attrs["passes"] = pd.Series({"a": 3.0, "b": 3.0, "c": 3.0, "LOO": 20.0})
    assert by_method(r).tracks.dropna().to_dict() == {"a": "yes", "b": "no", "c": CANNOT_TELL}
