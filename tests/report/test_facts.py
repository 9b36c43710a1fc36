"""Facts bound for the prose: what names they get, and that they are plain values."""

import myst_nb
import numpy as np
import pandas as pd

from lrputils.report.display import bind
from lrputils.stats import estimate


def test_facts_are_bound_as_plain_values_by_name_end_and_key(monkeypatch):
    bound, found = {}, estimate([0.1, 0.2, 0.4])
    monkeypatch.setattr(myst_nb, "glue", lambda name, value, display: bound.update({name: value}))
    gaps = pd.Series({"word": 0.1, "post-norm": 0.2})
    bind(count=np.int64(3), name="IMDB", gap=found, sst={"share": np.float32(0.5), "gap": gaps})
    numbers = {"gap": found.value, "gap_low": found.low, "gap_high": found.high}
    of_sst = {"sst_share": 0.5, "sst_gap_word": 0.1, "sst_gap_post-norm": 0.2}
    assert bound == {"count": 3, "name": "IMDB", **numbers, **of_sst}
    assert {type(value) for value in bound.values()} == {int, float, str}
