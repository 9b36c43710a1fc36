"""The frontier: maps of every setting, what exact passes do to them, and what a budget buys."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.__main__ import main
from lrputils.runs import results
from lrputils.study import frontier, remedy

NAMES = ["one-pass", "halves", "loo"]
MEAN = "one + halves"


@pytest.fixture(scope="module")
def classifier():
    return lrp.load_classifier()


@pytest.fixture(scope="module")
def rows(classifier):
    texts = lrp.load_texts(limit=5, max_words=14)
    return remedy.maps(classifier, texts, NAMES, batch_size=3)


def test_rows_are_the_methods_own_maps_with_their_cost(classifier, rows):
    texts = lrp.load_texts(limit=5, max_words=14)
    inputs = classifier.encode(texts[1])
    one = rows[rows.id == texts.ids[1]].set_index("setting")
    for name, options in (("halves", {"groups": 2}), ("one-pass", {})):
        expected = lrp.attribute(classifier, inputs, "mask-gradient", **options)[0]
        assert one.scores[name] == pytest.approx(expected.numpy(), rel=1e-3, abs=1e-4)
    length = len(one.scores["loo"])
    assert one.passes.to_dict() == {"one-pass": 3, "halves": 6, "loo": length}


def test_passes_count_the_rows():
    cost = {name: remedy.passes(options) for name, options in remedy.SETTINGS.items()}
    assert (cost["one-pass"], cost["quarters"]) == (3, 12)
    assert remedy.passes({"groups": 4, "with_open": True}) == 15
    with pytest.raises(ValueError, match=r"unknown setting\(s\) \['thirds'\]"):
        remedy.refuse_unknown(["halves", "thirds"])


def test_the_mean_of_two_settings_is_the_method_with_open_gates(classifier, rows):
    texts = lrp.load_texts(limit=5, max_words=14)
    known = frontier.with_exact(rows)
    mean = known[known.setting == MEAN].set_index("id")
    assert (mean.passes == 9).all()
    inputs = classifier.encode(texts[1])
    options = {"groups": 2, "with_open": True}
    expected = lrp.attribute(classifier, inputs, "mask-gradient", **options)[0]
    np.testing.assert_allclose(mean.scores[texts.ids[1]], expected, rtol=1e-3, atol=1e-4)


def test_exact_scores_raise_agreement_to_one(rows):
    known = frontier.with_exact(rows)
    assert set(known.setting) == {*NAMES, MEAN} - {"loo"}
    found = frontier.compared(known, [0.0, 1.0])
    whole = found[found.verified == 1]
    assert whole.r.to_numpy() == pytest.approx(1)
    assert (whole.relative < 1e-9).all()
    assert (whole.top == 1).all()
    first = known.iloc[0]
    r = stats.pearson(first.scores, first.loo, first.content)[0]
    assert found.r.iloc[0] == pytest.approx(r)
    assert found.cost.iloc[0] == pytest.approx(3 / len(first.scores))


def test_a_text_without_its_exact_map_is_named(rows):
    with pytest.raises(ValueError, match="no exact map of the same length"):
        frontier.with_exact(rows[rows.setting != "loo"])


def test_a_budget_takes_the_setting_of_its_plan(rows):
    known = frontier.with_exact(rows)
    spent = frontier.by_budget(known, [0.5])
    assert (spent.cost <= 0.5).all()
    assert sorted(spent.id) == sorted(known.id.unique())
    same = frontier.by_budget(known, [0.5], setting="one-pass")
    pd.testing.assert_frame_equal(same, spent)
    zeros = frontier.by_budget(known, [0.5], zeros=True)
    assert (zeros.relative > spent.relative).all()
    every = frontier.by_budget(known, [0.75], counted="all")
    assert every.r_all.mean() > frontier.by_budget(known, [0.75]).r_all.mean()
    with pytest.raises(ValueError, match="which was not measured"):
        frontier.by_budget(known[known.setting == "halves"], [0.5])


def test_a_recording_holds_the_maps(tmp_path):
    reviews = tmp_path / "our" / "texts.csv"
    reviews.parent.mkdir()
    pd.DataFrame({"text": ["a dull film", "a fine film"]}).to_csv(reviews, index=False)
    out = tmp_path / "remedy" / "own"
    given = ["--dataset", str(reviews), "--settings", "halves,loo", "--out", str(out), "--quiet"]
    assert main(["record", "remedy", *given]) in (0, None)
    run = results.load("remedy", "own", tmp_path)
    known = frontier.with_exact(run.rows)
    assert list(known.setting.unique()) == ["halves"]
    assert np.isfinite(frontier.compared(known).r).all()
    assert "--settings halves,loo" in run.provenance["command"]
