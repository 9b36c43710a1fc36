"""Recorded paths to leave-one-out, token by token.

How the paths are recorded is in `experiments.recordings.saturation`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments import frame
from lrputils.runs.results import load
from lrputils.study.agreement import over_texts


def lost_by_degree(run: str) -> dict[str, pd.DataFrame]:
    """Return the share of leave-one-out that is lost by degree, medians over texts with intervals.

    They are those of the top word and of the other words (their median), in the quarters of the
    texts with the smallest and the largest f, by a name of each; the last is what would be lost in
    proportion.
    """
    texts, exact, rows = load("saturation", run).rows, frame.recorded_loo(run), []
    ranks = texts.logit.rank(method="dense")
    quarters = np.ceil(4 * ranks / ranks.max()).astype(int)
    texts = texts.assign(id=texts.id.astype(str), quarter=quarters).sort_values("id")
    for text in texts.itertuples():
        own = np.array(text.content)
        lost, loo = (np.array(some, float)[own] for some in (text.scores, exact[text.id]))
        share, top = lost / loo, abs(loo).argmax()
        others = pd.Series(np.delete(share, top)).median()
        told = {"id": text.id, "degree": text.degree, "quarter": text.quarter}
        rows.append(told | {"top word": share[top], "other words": others})
    table, found = pd.DataFrame(rows), {}
    for word in ("top word", "other words"):
        for quarter, sureness in {1: "unsure", 4: "sure"}.items():
            part = table[table.quarter == quarter]
            found[f"{word}, {sureness}"] = over_texts(part, "degree", word, statistic=np.median)
    degrees = table.degree.unique()
    found["in proportion"] = pd.DataFrame({"value": degrees}, degrees)
    return found
