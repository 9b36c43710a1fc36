"""Tables of canonised LRP: every number against scipy, in a loop over texts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lrputils.report import canonised, controls
from lrputils.study import patching


@pytest.fixture(scope="module")
def rows():
    random, found = np.random.default_rng(0), []
    for text in range(5):
        head = {"id": text, "content": np.array([False, *[True] * (4 + text), False]), "rules": ""}
        labels = [("loo", "", "attention-mask"), ("loo", "", "zero"), ("mask-gradient", "", "")]
        labels += [("attnlrp", place, "") for place in canonised.PLACES]
        labels += [("canonised-lrp", place, "") for place in canonised.PLACES]
        for method, place, removal in [*labels, labels[-1]]:
            scores = random.normal(size=len(head["content"])).astype(np.float32)
            names = {"method": method, "readout": place, "removal": removal}
            found.append({**head, **names, "scores": scores})
    return controls.together(pd.DataFrame(found))


def r_with_loo(rows, method, place):
    found = []
    for _, part in rows.groupby("id"):
        (loo,) = part[(part.method == "loo") & (part.removal == "attention-mask")].scores
        (own,) = part[(part.method == method) & (part.readout == place)].scores
        found.append(scipy.stats.pearsonr(loo[1:-1].astype(float), own[1:-1].astype(float))[0])
    return np.array(found)


def test_levels_are_means_over_texts_without_special_tokens(rows):
    table = canonised.levels(rows)
    assert list(table.index) == list(canonised.NAMES.values())
    for place in canonised.PLACES:
        for method in ("attnlrp", "canonised-lrp"):
            expected = r_with_loo(rows, method, place).mean()
            assert table[place][canonised.NAMES[method]] == pytest.approx(expected, abs=1e-6)
    expected = r_with_loo(rows, "mask-gradient", "").mean()
    assert table["blocks"]["plain gradient"] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(table["word"]["plain gradient"])


def test_differences_are_paired(rows):
    table = canonised.levels(rows, against="attnlrp")
    first, second = (r_with_loo(rows, m, "sum") for m in ("canonised-lrp", "attnlrp"))
    row = table.loc[canonised.NAMES["canonised-lrp"]]
    assert row["sum"] == pytest.approx((first - second).mean(), abs=1e-6)
    assert row["sum low"] < row["sum"] < row["sum high"]
    assert table["sum"]["AttnLRP"] == 0


def test_patches_are_means_of_r_over_texts():
    random, found = np.random.default_rng(1), []
    for text in range(4):
        for site in patching.SITES:
            for source in patching.SOURCES:
                for layer in range(5):
                    row = {"id": text, "site": site, "source": source, "layer": layer}
                    values = random.normal(size=1 + len(patching.PASSES))
                    found.append(row | dict(zip(["effect", *patching.PASSES], values, strict=True)))
    rows = pd.DataFrame(found)
    tables = canonised.patches(rows)
    gap = canonised.patches(rows, against="gradient")
    part = rows[(rows.site == "state") & (rows.source == "zero")].groupby("id")
    r = {
        name: np.array([scipy.stats.pearsonr(g[name], g.effect)[0] for _, g in part])
        for name in ("gradient", "attnlrp")
    }
    assert tables["AttnLRP"].value["state: zero"] == pytest.approx(r["attnlrp"].mean())
    expected = (r["attnlrp"] - r["gradient"]).mean()
    assert gap["AttnLRP"].value["state: zero"] == pytest.approx(expected)
