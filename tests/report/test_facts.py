"""Facts bound for the prose: what names they get, and that they are plain values."""

import myst_nb
import numpy as np
import pandas as pd
import pytest

from lrputils.report.facts import bind
from lrputils.stats import estimate


@pytest.fixture
def bound(monkeypatch):
    found = {}

    def glue(name, value, display):
        assert not display
        found[name] = value

    monkeypatch.setattr(myst_nb, "glue", glue)
    return found


def test_numbers_and_texts_are_bound_as_plain_values(bound):
    bind(count=np.int64(3), share=np.float32(0.5), name="IMDB")
    assert bound == {"count": 3, "share": 0.5, "name": "IMDB"}
    assert [type(value) for value in bound.values()] == [int, float, str]


def test_an_estimate_brings_its_interval(bound):
    found = estimate([0.1, 0.2, 0.4])
    bind(gap=found, own=(1.0, 0.0, 2.0))
    assert (bound["gap"], bound["gap_low"], bound["gap_high"]) == found[:3]
    assert (bound["own"], bound["own_low"], bound["own_high"]) == (1, 0, 2)


def test_mappings_and_series_are_bound_by_their_keys(bound):
    bind(sst={"texts": 4, "gap": pd.Series({"word": 0.1, "post-norm": 0.2})})
    assert bound == {"sst_texts": 4, "sst_gap_word": 0.1, "sst_gap_post-norm": 0.2}
