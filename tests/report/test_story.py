"""The book's first figure, against the same correlations computed text by text."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lrputils.report import story
from lrputils.report.figures import specifications as draw
from lrputils.runs.results import Recording
from lrputils.study import specifications

NAME = ("two layers", "texts")


@pytest.fixture(scope="module")
def recorded():
    """Maps of six invented texts of seven tokens, and estimates of four of them."""
    random = np.random.default_rng(0)
    content = np.array([False, *[True] * 5, False])
    common = {"content": content, "rules": "", "removal": ""}
    maps, estimates = [], []
    for text in range(6):
        loo = random.normal(size=7)
        maps.append({"id": text, "method": "loo", "scores": loo, "readout": "", **common})
        maps[-1]["removal"] = "attention-mask"
        for method in story.MAPS:
            for readout in story.READOUTS:
                row = {"id": text, "method": method, "readout": readout, **common}
                maps.append(row | {"scores": random.normal(size=7)})
        for setting in ("one-pass", "halves") if text < 4 else ():
            scores = loo + 0.01 * random.normal(size=7)
            row = {"id": text, "setting": setting, "passes": 3, "seconds": 0.0}
            estimates.append(row | {"scores": scores, "content": content})
    return pd.DataFrame(maps), pd.DataFrame(estimates)


def test_each_correlation_is_that_of_the_raw_maps(recorded):
    maps, estimates = recorded
    found = story.tracking(specifications.agreement(maps), estimates, maps)
    assert list(found.index) == ["0", "1", "2", "3"]
    loo = maps[maps.method == "loo"].set_index("id").scores
    for text, row in found.iterrows():
        for (name, readout), r in row.items():
            own = estimates[estimates.id == int(text)].set_index("setting").scores
            if name == "one + halves":
                size = own.map(lambda scores: np.abs(scores[1:-1]).mean())
                scores = own["one-pass"] / size["one-pass"] + own["halves"] / size["halves"]
            elif readout == story.NO_READOUT:
                scores = own[name]
            else:
                rows = maps[(maps.method == name) & (maps.readout == readout)]
                (scores,) = rows[rows.id == int(text)].scores
            assert r == pytest.approx(np.corrcoef(scores, loo[int(text)])[0, 1], abs=1e-6)


def test_margins_are_paired_and_panels_can_be_drawn(recorded):
    maps, estimates = recorded
    runs = {NAME: specifications.agreement(maps)}
    given = {NAME: Recording(estimates, {})}, {NAME: Recording(maps, {})}
    gaps = story.margins(runs, *given)
    found = story.tracking(runs[NAME], estimates, maps)
    one = found["one-pass", story.NO_READOUT] - found["cp-lrp", "sum"]
    key = ("texts, two layers", "mask gradient", "CP-LRP", "sum")
    assert gaps.value[key] == pytest.approx(one.mean())
    assert len(gaps) == 12
    assert "no read-out" in {
        text.get_text()
        for legend in draw.by_convention(story.panels(runs, *given)).legends
        for text in legend.get_texts()
    }
