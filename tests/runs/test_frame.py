"""The frame holds every recorded map once, under the names of all kinds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils.runs import frame, results


def test_maps_are_those_of_the_files():
    rows = frame.read_maps("maps", "remedy", runs=["minilm-sst2"])
    loo = rows[(rows.method == "loo") & (rows.removal == "attention-mask")]
    assert loo.id.is_unique
    assert set(loo.model) == {frame.MINILM}
    assert set(loo.data) == {"SST-2"}
    remedy = results.load("remedy", "minilm-sst2").rows
    for setting, (form, groups) in {
        "halves": ("exact-block", 2),
        "eighths": ("exact-block", 8),
        "first-order": ("first-order", 1),
    }.items():
        own = rows[(rows.form == form) & (rows.groups == groups)].set_index("id")
        expected = remedy[remedy.setting == setting].set_index("id")
        assert len(own) == len(expected) > 0
        for text, scores in expected.scores.items():
            np.testing.assert_array_equal(own.scores[text], scores)
            assert own.tokens[text] == len(scores) == len(own.content[text])


def test_no_map_stands_twice():
    rows = frame.read_maps("maps", "canon", "controls", "remedy")
    keys = ["model", "data", "id", "method", *frame.CHOICES, "groups"]
    assert not rows.duplicated(keys).any()
    assert rows[frame.CHOICES].notna().all().all()
    assert set(rows.model) == {frame.MINILM, frame.MPNET6, frame.MPNET}


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"\['sst'\] hold no maps; choose from"):
        frame.read_maps("sst")
    with pytest.raises(FileNotFoundError, match="no recorded run depth/minilm-imdb"):
        frame.read_rows("depth", ["minilm-imdb"])


def test_a_sum_is_that_of_the_method():
    clf = lrp.load_classifier()
    inputs = clf.encode(["a film that is never dull", "dull"])
    rows = []
    for groups in (None, 2):
        scores = lrp.attribute(clf, inputs, "mask-gradient", groups=groups)
        for text, length in enumerate(inputs.lengths.tolist()):
            told = {"model": "m", "data": "d", "id": str(text), "method": "mask-gradient"}
            told |= {"form": "exact-block", "groups": groups or 1, "passes": 3 * (groups or 1)}
            content = inputs.content_mask[text, :length].numpy()
            rows.append({**told, "scores": scores[text, :length].numpy(), "content": content})
    found = frame.add_sums(pd.DataFrame(rows)).query("form == @frame.SUM")
    expected = lrp.attribute(clf, inputs, "mask-gradient", groups=2, with_open=True)
    for text, row in enumerate(found.itertuples()):
        np.testing.assert_allclose(row.scores, expected[text, : len(row.scores)], atol=1e-5)
        assert row.passes == 9
