"""Which half of the layers leads in the layer ablations of an evaluation or a recording."""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.study.by_text import Run

RAW, SUM_TO_ONE = "raw r", "maps divided by their sums"
# convention → column of an evaluation's rows
COLUMNS = {RAW: "r", SUM_TO_ONE: "r_normalised"}
_CONTENT = "without special tokens"


def single_layer_gains(run: Run, column: str = "r", readout: str = "word") -> pd.DataFrame:
    """What CP-LRP's rule in one layer adds to AttnLRP's r with LOO: (texts, layers from 1)."""
    single = run.ablations(column, readout)["single"]
    return single.sub(run.per_text(column, ["attnlrp"], readout)["attnlrp"], axis=0)


def late_minus_early(gains: pd.DataFrame) -> stats.Estimate:
    """Mean gain of the middle-to-late half of the layers less that of the early half, by text.

    An odd number of layers has its middle one in the late half; ValueError for a single layer.
    Positive with an interval above zero: "middle-to-late layers matter most" holds on these texts.
    """
    middle = gains.shape[1] // 2
    if not middle:
        raise ValueError("a single layer has no early half: the gain of layers cannot be compared")
    halves = gains.iloc[:, middle:], gains.iloc[:, :middle]  # late, early
    return stats.paired_difference(*(half.mean(axis=1, skipna=False) for half in halves))


def halves(run: Run) -> dict[str, pd.DataFrame]:
    """Do the later layers matter more? Two paired tests, positive where they do.

    "back − front": r with CP-LRP's rule in the later half of the layers less r with it in the
    earlier half. "late − early": `late_minus_early`. Test → `stats.table`, a row a (read-out,
    convention) of the run, raw r without special tokens among the conventions.
    """
    back, late = {}, {}
    for at in run.rows[run.rows.family == "single"].readout.unique():
        for convention, column in {**COLUMNS, _CONTENT: "r_content"}.items():
            both = _back_and_front(run.ablations(column, at))
            back[at, convention] = stats.paired_difference(*both)
            late[at, convention] = late_minus_early(single_layer_gains(run, column, at))
    return {"back − front": stats.table(back), "late − early": stats.table(late)}


def _back_and_front(ablations: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    middle = ablations["single"].shape[1] // 2
    if not middle:
        raise ValueError("a single layer has no early half: the gain of layers cannot be compared")
    return ablations["back", middle + 1], ablations["front", middle]
