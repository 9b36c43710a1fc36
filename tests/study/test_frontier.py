"""The frontier: maps of every setting, what exact passes do to them, and what a budget buys."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.__main__ import main
from lrputils.report.figures.frontier import frontier as draw
from lrputils.runs import results
from lrputils.study import frontier, remedy

NAMES = ["one-pass", "joint", "halves", "halves-radau", "loo"]


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
    assert one.passes.to_dict() == {
        "one-pass": 3, "joint": 3, "halves": 6, "halves-radau": 9, "loo": length
    }  # fmt: skip


def test_passes_count_the_rows_of_every_node():
    cost = {name: remedy.passes(options) for name, options in remedy.SETTINGS.items()}
    assert (cost["quarters"], cost["quarters-radau"], cost["quarters-simpson"]) == (12, 15, 27)
    with pytest.raises(ValueError, match=r"unknown setting\(s\) \['thirds'\]"):
        remedy.refuse_unknown(["joint", "thirds"])


def test_exact_scores_raise_agreement_to_one(rows):
    known = frontier.with_exact(rows)
    assert set(known.setting) == {*NAMES} - {"loo"}
    found = frontier.compared(known, [0.0, 1.0])
    whole = found[found.verified == 1]
    assert whole.r.to_numpy() == pytest.approx(1)
    assert (whole.relative < 1e-9).all()
    assert (whole.top == 1).all()
    first = known.iloc[0]
    r = stats.pearson(first.scores, first.loo, first.content)[0]
    assert found.r.iloc[0] == pytest.approx(r)
    assert found.cost.iloc[0] == pytest.approx(3 / len(first.scores))


def test_methods_of_another_run_stand_beside_the_settings():
    ids = ["a", "b", "c"]
    texts = pd.DataFrame({"id": ids, "method": "ig", "tokens": [24, 48, 12], "readout": "word"})
    texts = texts.assign(family="", r=0.9, r_content=[0.5, 0.25, 0.75])
    bypass = texts.assign(family="front", method="attnlrp")
    found = remedy.others(pd.concat([texts, bypass, texts.assign(method="cp-lrp")]), {"a", "b"})
    table = frontier.table(found, ["setting", "verified"], ["passes", "cost", "r"])
    assert table.loc[("ig", 0.0)].to_dict() == pytest.approx(
        {"texts": 2, "passes": 96, "cost": 3, "r": 0.375, "low": 0.25, "high": 0.5}
    )
    assert len(table) == 1


def test_a_text_without_its_exact_map_is_named(rows):
    with pytest.raises(ValueError, match="no exact map of the same length"):
        frontier.with_exact(rows[rows.setting != "loo"])


def test_a_budget_takes_the_setting_of_its_plan(rows):
    known = frontier.with_exact(rows)
    spent = frontier.by_budget(known, [0.5])
    assert (spent.cost <= 0.5).all()
    assert sorted(spent.id) == sorted(known.id.unique())
    with pytest.raises(ValueError, match="which was not measured"):
        frontier.by_budget(known[known.setting == "one-pass"], [0.5])


def test_coverage_is_measured_on_texts_held_out(rows):
    known = frontier.with_exact(rows)
    found = frontier.coverage(known, "halves", 0.2, level=0.8, folds=5)
    assert sorted(found.id) == sorted(known.id.unique())
    assert found.covered.between(0, 1).all()
    assert (found.width > 0).all()


def test_a_table_and_the_figure_hold_every_setting(rows):
    compared = frontier.compared(frontier.with_exact(rows))
    table = frontier.table(compared, ["setting", "verified"], ["cost", "r"])
    assert len(table) == 4 * len(frontier.SHARES)
    assert (table.low <= table.r).all()
    assert (table.r <= table.high).all()
    assert "joint" not in draw({"this run": table}).svg()  # text is drawn, names are readers' own


def test_aims_are_read_off_the_rows(rows):
    found = frontier.aims({"MiniLM, SST-2": frontier.with_exact(rows), "other": rows})
    assert list(found.aim) == [0.90, 0.97]
    assert (found.texts == 5).all()


def test_a_recording_holds_the_maps(tmp_path):
    reviews = tmp_path / "our" / "texts.csv"
    reviews.parent.mkdir()
    pd.DataFrame({"text": ["a dull film", "a fine film"]}).to_csv(reviews, index=False)
    out = tmp_path / "remedy" / "own"
    given = ["--dataset", str(reviews), "--settings", "joint,loo", "--out", str(out), "--quiet"]
    assert main(["record", "remedy", *given]) in (0, None)
    run = results.load("remedy", "own", tmp_path)
    known = frontier.with_exact(run.rows)
    assert list(known.setting.unique()) == ["joint"]
    assert np.isfinite(frontier.compared(known).r).all()
    assert "--settings joint,loo" in run.provenance["command"]
