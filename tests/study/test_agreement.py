"""Correlations under conventions against the plain functions of `lrputils.stats`, map by map."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lrputils import stats
from lrputils.study import agreement as study


def kendall(own, loo):
    return scipy.stats.kendalltau(own[0], loo[0]).statistic[None]


PLAIN = {"Pearson": stats.pearson, "Spearman": stats.spearman, "Kendall": kendall}
COUNT = {
    study.EVERY: slice(None),
    study.NO_CLS: slice(1, None),
    study.NO_SEP: slice(None, -1),
    study.WORDS: slice(1, -1),
}


@pytest.fixture
def maps() -> pd.DataFrame:
    """Two texts with two removals and three methods; ties among the scores."""
    generator, rows = np.random.default_rng(0), []
    names = [("loo", "attention-mask"), ("loo", "mask"), ("a", ""), ("b", ""), ("c", "")]
    for text, tokens in (("x", 7), ("y", 9)):
        content = np.ones(tokens, bool)
        content[[0, -1]] = False
        for method, removal in names:
            scores = generator.normal(size=tokens).round(1).astype(np.float32)
            given = {"method": method, "removal": removal, "scores": scores, "content": content}
            rows.append({"model": "m", "data": "d", "id": text, **given})
    return pd.DataFrame(rows)


def test_every_convention_is_the_plain_correlation(maps):
    rows = study.agreement(maps, study.COUNTED, study.NORMALISATIONS, [*PLAIN])
    assert len(rows) == 2 * 3 * 2 * 4 * 2 * 3
    scores = {(r.id, r.method, r.removal): r.scores.astype(float) for r in maps.itertuples()}
    for row in rows.itertuples():
        where = COUNT[row.counted]
        own = scores[row.id, row.method, ""][where]
        loo = scores[row.id, "loo", row.removal][where]
        if row.normalisation == study.SUM_TO_ONE:
            own, loo = own / own.sum(), loo / loo.sum()
        expected = PLAIN[row.coefficient](own[None], loo[None])[0]
        assert row.r == pytest.approx(expected, abs=1e-6), row


def test_means_and_differences_are_those_of_stats(maps):
    rows = study.agreement(maps[maps.removal != "mask"])
    wide = rows.pivot(index="id", columns="method", values="r")
    table = study.over_texts(rows, "method")
    assert list(table.index) == ["a", "b", "c"]
    assert tuple(table.loc["b"]) == stats.estimate(wide.b, within=stats.CORRELATION)
    gap = study.compare(rows, "a", "b", ["model", "data"])
    assert tuple(gap.loc["m", "d"]) == stats.paired_difference(wide.a, wide.b)
    assert tuple(study.compare(rows, "a", "b").iloc[0]) == tuple(gap.iloc[0])


def test_an_unseen_text_is_worth_the_larger_mean_delta_and_nothing_in_other_units():
    of_first = {"id": range(40), "method": "a", "delta": 1.1, "seconds": 1.1}
    of_second = {"id": range(40), "method": "b", "delta": 1.0, "seconds": 1.0}
    rows = pd.concat([pd.DataFrame(of_first), pd.DataFrame(of_second)], ignore_index=True)
    larger = rows.assign(delta=rows.delta + 5, seconds=rows.seconds + 5)  # the same differences
    for some, leads in ((rows, {"delta": 1, "seconds": 1}), (larger, {"delta": 0, "seconds": 1})):
        for column, lead in leads.items():
            assert study.compare(some, "a", "b", column=column).lead.iloc[0] == lead


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda maps: study.over_texts(study.agreement(maps), "method"), "leave a choice"),
        (lambda maps: study.compare(study.agreement(maps), "a", "b"), "leave a choice"),
        (
            lambda maps: study.agreement(maps, ["words"]),
            r"counted='words' is not one of \['all', ",
        ),
        (lambda maps: study.agreement(maps[maps.method != "loo"]), "no text has both"),
        (
            lambda maps: study.compare(study.agreement(maps), "a", "q", "removal"),
            "no text has r of both 'a' and 'q'; a text of one token has no correlation",
        ),
    ],
)
def test_mistakes_are_named(maps, call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(maps)
