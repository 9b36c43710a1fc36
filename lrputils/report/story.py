"""The book in one table: maps of one pass and estimates of removal, beside leave-one-out."""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.model.readout import READOUTS
from lrputils.report.claims import Recordings, Runs
from lrputils.study import frontier
from lrputils.study import specifications as grid

MAPS = {"attnlrp": "AttnLRP", "cp-lrp": "CP-LRP"}
ESTIMATES = {"one-pass": "mask gradient", "one + halves": "mask gradient + half-removal"}
_PARTS = ("one-pass", "halves")  # the recorded settings that these are, or are the mean of
NO_READOUT = "no read-out"
_CHOICES = {"tokens": grid.EVERY, "normalisation": grid.RAW, "removal": "attention-mask"}


def tracking(found: pd.DataFrame, estimates: pd.DataFrame, maps: pd.DataFrame) -> pd.DataFrame:
    """Return Pearson's r with leave-one-out of each text: raw maps, every token counted.

    `found` is `specifications.agreement` of the rows `maps`, `estimates` are rows of `remedy.maps`,
    on the same texts or a part of them: these are the rows; the columns' levels are "method" and
    "read-out", which is `NO_READOUT` for an estimate.
    """
    usual = grid.at(found.T, rules=grid.DEFAULT, coefficient="Pearson", **_CHOICES)
    usual = grid.by(usual, "method", "read-out").T
    wanted = [(method, readout) for method in MAPS for readout in READOUTS]
    rows = frontier.with_exact(estimates[estimates.setting.isin(_PARTS)], maps)
    rows = frontier.compared(rows[rows.setting.isin(ESTIMATES)], shares=[0.0])
    rows = rows.assign(readout=NO_READOUT).pivot(
        index="id", columns=["setting", "readout"], values="r_all"
    )
    return usual[wanted].set_axis(usual.index.astype(str)).join(rows, how="right")


def panels(
    runs: Runs, estimates: Recordings, maps: Recordings
) -> dict[str, dict[str, pd.DataFrame]]:
    """Return run → method → `value`, `low`, `high` by read-out, for `figures.specifications`."""
    drawn = {}
    for (model, data), run in estimates.items():
        found = tracking(runs[model, data], run.rows, maps[model, data].rows)
        rows = stats.estimates(found)
        rows.index = pd.MultiIndex.from_tuples(rows.index, names=["method", "read-out"])
        drawn[f"{data}, {model}, {len(found)} texts"] = {
            label: rows.loc[[name]] for name, label in {**MAPS, **ESTIMATES}.items()
        }
    return drawn


def margins(runs: Runs, estimates: Recordings, maps: Recordings) -> pd.DataFrame:
    """Return by how much each estimate is closer to leave-one-out than each map: paired by text.

    A row a run, "estimate", map and read-out, with the fields of `lrputils.stats.Estimate`.
    """
    rows = {}
    for (model, data), run in estimates.items():
        found = tracking(runs[model, data], run.rows, maps[model, data].rows)
        for setting, estimate in ESTIMATES.items():
            left = found[setting, NO_READOUT]
            for (method, readout), right in found[[*MAPS]].items():
                gap = stats.paired_difference(left, right)
                rows[f"{data}, {model}", estimate, MAPS[method], readout] = gap
    index = pd.MultiIndex.from_tuples(rows, names=["run", "estimate", "map", "read-out"])
    return stats.table(rows).set_axis(index, axis=0)
