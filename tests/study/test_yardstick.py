"""Yardsticks: what the rows hold, and measures of disagreement on maps made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.report import yardstick as tables
from lrputils.runs import results
from lrputils.runs.studies import record_study
from lrputils.study import yardstick

TEXTS = ["a film that is never dull", "dull", "a slow and empty evening"]


@pytest.fixture(scope="module")
def rows(classifier):
    return yardstick.measured(classifier, lrp.load_texts(TEXTS), permutations=4, batch_size=2)


def made(text: str = "0", **maps) -> pd.DataFrame:
    """Rows of one text of eight tokens; what is not given is random."""
    random = np.random.default_rng(int(text))
    names = (*yardstick.METHODS, "loo", "shapley", "shapley-error", "shapley-first")
    given = {name: random.normal(size=8) for name in (*names, "shapley-second")}
    given |= {"interactions": random.normal(size=28), **maps}
    return pd.DataFrame([{"id": text, "method": m, "scores": s} for m, s in given.items()])


def test_rows_hold_every_map_over_the_words(rows, classifier):
    inputs = classifier.encode(TEXTS[:1])
    one = rows[rows.id == rows.id.iloc[0]].set_index("method").scores
    content = inputs.content_mask[0]
    for method in ("attnlrp", "loo"):
        expected = lrp.attribute(classifier.model, inputs, method)[0, content]
        np.testing.assert_allclose(one[method], expected, atol=1e-5)
    pairs = lrp.leave_two_out(classifier.model, inputs).interactions[0][content][:, content]
    upper = pairs[np.triu_indices(len(pairs), 1)]
    np.testing.assert_allclose(one["interactions"], upper, atol=1e-5)
    halves = (one["shapley-first"] + one["shapley-second"]) / 2
    np.testing.assert_allclose(one["shapley"], halves, atol=1e-5)


def test_exact_values_stand_beside_the_sampled_ones(classifier):
    texts = lrp.load_texts([TEXTS[0], "a film " * 9])
    rows = yardstick.measured(classifier, texts, permutations=4, exact=True)
    exact = rows[rows.method == yardstick.EXACT]
    assert list(exact.id) == [rows.id.iloc[0]]
    inputs = classifier.encode(TEXTS[:1])
    expected = lrp.shapley_values(classifier, inputs, permutations="all").scores
    np.testing.assert_allclose(
        exact.scores.iloc[0], expected[inputs.content_mask], rtol=1e-4, atol=1e-5
    )


def test_agreement_with_itself_is_one_and_one_word_has_none(rows):
    found = yardstick.agreement(rows)
    assert list(found.index) == list(rows.id.unique())
    for name in yardstick.YARDSTICKS:
        assert found.iloc[[0, 2]][name, name].to_numpy() == pytest.approx(1)
    assert found.iloc[1].isna().all()
    assert not yardstick.disagreement(rows).index.isin([rows.id.unique()[1]], level=0).any()


def test_the_second_yardstick_adds_half_of_each_tokens_pairs():
    pairs = np.zeros(28)
    pairs[0], pairs[-1] = 2.0, -4.0  # of tokens 0 and 1, and of the last two
    ((_, maps),) = yardstick.by_text(made(loo=np.arange(8.0), interactions=pairs))
    np.testing.assert_allclose(maps["pairs"], [1, 2, 2, 3, 4, 5, 4, 5])


def test_noise_of_known_size_is_the_missing_reliability():
    scores = np.arange(8.0)
    rows = made(**{"shapley": scores, "shapley-error": np.full(8, 0.5)})
    found = yardstick.reliability(rows).iloc[0]
    assert found.reliability == pytest.approx(1 - 0.25 / scores.var(ddof=1))
    assert found["split half"] == pytest.approx(2 * found.halves / (1 + found.halves))
    raw = yardstick.agreement(rows)
    table = tables.corrected(raw, yardstick.reliability(rows))
    expected = table.measured / found.reliability**0.5
    np.testing.assert_allclose(table["without noise"], expected)


def test_a_method_that_adds_the_pairs_departs_towards_them():
    random = np.random.default_rng(1)
    loo, pairs = random.normal(size=8), random.normal(size=28)
    ((_, maps),) = yardstick.by_text(made(loo=loo, interactions=pairs))
    rows = made(loo=loo, interactions=pairs, attnlrp=2 * maps["pairs"] + 3, **{"cp-lrp": -loo})
    found = yardstick.disagreement(rows).loc["0"]
    assert found.partial["attnlrp"] == pytest.approx(1)
    assert found.share["cp-lrp"] == pytest.approx(0, abs=1e-12)
    r = lrp.pearson(maps["pairs"], loo)[0]
    assert found.share["attnlrp"] == pytest.approx(1 - r**2)
    z = (maps["pairs"] - maps["pairs"].mean()) / maps["pairs"].std()
    left = z - r * (loo - loo.mean()) / loo.std()
    top = np.argsort(maps["pairs"] - loo)[-2:]
    expected = (left[top] ** 2).sum() / (left**2).sum()
    assert found.redundant["attnlrp"] == pytest.approx(expected)
    assert found.expected.eq(0.25).all()


def test_tables_name_methods_and_keep_intervals():
    rows = pd.concat([made(str(n), loo=np.random.default_rng(n).normal(size=8)) for n in range(6)])
    found = yardstick.agreement(rows)
    table = tables.by_yardstick(found)
    assert table.value["LOO", "AttnLRP"] == pytest.approx(found["loo", "attnlrp"].mean())
    gap = tables.contrast(found, "attnlrp", "ig").loc["Shapley values"]
    expected = (found["shapley", "attnlrp"] - found["shapley", "ig"]).mean()
    assert gap.value == pytest.approx(expected)
    assert gap.low < expected < gap.high
    assert tables.accounted(rows).value["Shapley values"] == 1
    departed = tables.departures(yardstick.disagreement(rows))
    assert departed.index.unique(1)[0] == "AttnLRP"
    assert departed.value[tables.PARTIAL].between(-1, 1).all()


def test_a_recording_keeps_the_rows_and_leaves_out_long_texts(classifier, tmp_path):
    out = tmp_path / "yardstick" / "tiny"
    texts = lrp.load_texts(TEXTS)
    record_study("yardstick", classifier, texts, out, permutations=4, longest=5, quiet=True)
    run = results.load("yardstick", "tiny", tmp_path)
    kept = yardstick.measured(classifier, texts.take([1, 2]), permutations=4)
    assert list(run.rows.id) == list(kept.id)
    for found, expected in zip(run.rows.scores, kept.scores, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert run.provenance["parameters"]["longest"] == 5
    with pytest.raises(ValueError, match="--longest 0: each of the 3 texts has more words"):
        record_study("yardstick", classifier, texts, tmp_path / "x", longest=0, quiet=True)
    with pytest.raises(ValueError, match="permutations=3 is not an even number"):
        record_study("yardstick", classifier, texts, tmp_path / "x", permutations=3, quiet=True)
    assert not (tmp_path / "x").exists()
