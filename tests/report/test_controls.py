"""Tables of controls: every number against scipy, in a loop over texts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lrputils.model.readout import READOUTS
from lrputils.report import controls
from lrputils.study.specifications import EVERY, NO_CLS, RAW, SUM_TO_ONE

METHODS = ("attnlrp", *controls.CONTROLS)
CLOSED = ("key-closed", "query-closed")
REMOVALS = ("attention-mask", "zero")


@pytest.fixture(scope="module")
def recorded():
    """Two recordings of random maps: five texts, of which the second has one more."""
    random = np.random.default_rng(0)
    found = {"maps": [], "more": []}
    for text in range(6):
        head = {"id": text, "content": np.array([False, *[True] * (4 + text), False])}
        tokens = len(head["content"])
        labels = [("loo", "", removal) for removal in REMOVALS]
        labels += [(method, place, "") for method in METHODS for place in READOUTS]
        for method, place, removal in labels:
            row = {**head, "method": method, "rules": "", "readout": place, "removal": removal}
            row["scores"] = random.normal(size=tokens).astype(np.float32)
            kind = "more" if method in CLOSED else "maps"
            if kind == "more" or text < 5:
                found[kind].append(row)
    found["maps"].append({**found["maps"][2], "rules": "norm=held"})
    return {kind: pd.DataFrame(rows) for kind, rows in found.items()}


@pytest.fixture(scope="module")
def rows(recorded):
    return controls.together(*recorded.values())


def scores(rows, text, method, place="", removal=""):
    keys = {"id": text, "method": method, "readout": place, "removal": removal}
    (found,) = rows[(rows[list(keys)] == pd.Series(keys)).all(axis=1)].scores
    return found.astype(float)


def test_together_has_the_texts_of_the_first_and_the_default_rules(rows):
    assert set(rows.id) == set(range(5))
    assert set(rows.rules) == {""}
    assert set(CLOSED) < set(rows.method)


@pytest.mark.parametrize("normalisation", [RAW, SUM_TO_ONE])
@pytest.mark.parametrize(("tokens", "start"), [(EVERY, 0), (NO_CLS, 1)])
def test_effects_are_changes_of_r_in_pairs(rows, normalisation, tokens, start):
    table = controls.effects(rows)
    for method, name in controls.CONTROLS.items():
        for place in READOUTS:
            changes = []
            for text in range(5):
                loo = scores(rows, text, "loo", removal="attention-mask")[start:]
                maps = [scores(rows, text, m, place)[start:] for m in (method, "attnlrp")]
                if normalisation == SUM_TO_ONE:
                    loo, maps = loo / loo.sum(), [each / each.sum() for each in maps]
                r = [scipy.stats.pearsonr(each, loo).statistic for each in maps]
                changes.append(r[0] - r[1])
            row = table.loc[(normalisation, tokens, name)]
            assert row[place] == pytest.approx(np.mean(changes), abs=1e-6)
            assert row[f"{place} low"] <= row[place] <= row[f"{place} high"]


def test_removals_are_compared_with_each_other(rows):
    table = controls.between_removals(rows)
    assert list(table.index) == list(table) == ["mask", "zero embedding"]
    r = [
        scipy.stats.pearsonr(*(scores(rows, t, "loo", removal=x) for x in REMOVALS)).statistic
        for t in range(5)
    ]
    assert table.loc["mask", "zero embedding"] == pytest.approx(np.mean(r), abs=1e-6)
    assert np.diag(table) == pytest.approx(1)
