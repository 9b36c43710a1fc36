"""Recorded settings of the mask gradient: the method's own maps, with their cost."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.runs import results
from lrputils.study import remedy

NAMES = ["one-pass", "halves", "loo"]


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


def test_a_recording_holds_the_maps(tmp_path):
    reviews = tmp_path / "our" / "texts.csv"
    reviews.parent.mkdir()
    pd.DataFrame({"text": ["a dull film", "a fine film"]}).to_csv(reviews, index=False)
    out = tmp_path / "remedy" / "own"
    given = ["--dataset", str(reviews), "--settings", "halves,loo", "--out", str(out), "--quiet"]
    assert main(["record", "remedy", *given]) in (0, None)
    run = results.load("remedy", "own", tmp_path)
    assert set(run.rows.setting) == {"halves", "loo"}
    assert run.rows.scores.map(lambda scores: np.isfinite(scores).all()).all()
    assert "--settings halves,loo" in run.provenance["command"]
