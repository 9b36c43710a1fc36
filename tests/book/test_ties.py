"""Rows that only rounding tells apart keep their order, whichever way a processor rounds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import lrputils.linear_attention as la
from lrputils.study import specifications

NAMES = ["c", "a", "d", "b"]


@pytest.fixture(params=range(8))
def rounded(request):
    """Another processor's numbers: what it returns differs from what it is given by rounding."""
    generator = np.random.default_rng(request.param)
    return lambda values: np.asarray(values, float) * (1 + generator.uniform(-1, 1) * 1e-15)


def test_settings_as_near_as_each_other_stand_by_name(rounded):
    far = {"c": 0.2, "a": 0.2, "d": 0.1, "b": 0.2}
    table = pd.DataFrame(
        [
            {"setting": name, "removal": "zero", "pair": pair, "r_normalised": rounded(0.5 + miss)}
            for name, miss in far.items()
            for pair in ("one", "two")
        ]
    )
    published = pd.Series({"one": 0.5, "two": 0.5})
    found = la.nearest_first(table, published)
    assert list(found.index) == [f"{name}, zero" for name in "dabc"]


def test_choices_that_matter_alike_stand_as_they_were_given(rounded):
    index = pd.MultiIndex.from_product([[0, 1]] * 4, names=NAMES)
    values = pd.Series([rounded(sum(row) + 2 * row[2]) for row in index], index)
    assert list(specifications.importance(values).index) == ["d", "c", "a", "b"]
