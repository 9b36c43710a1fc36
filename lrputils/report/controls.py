"""Why AttnLRP and CP-LRP differ, as tables: recorded maps in which one thing changes at a time.

The two methods part at attention, and twice. The controls of `lrputils.study.conventions` change
one of their decisions. Every table is made from `lrputils.study.specifications.agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lrputils.model.readout import READOUTS
from lrputils.report.tables import side_by_side
from lrputils.study import specifications
from lrputils.study.specifications import EVERY, NO_CLS, RAW, SUM_TO_ONE

MASK = "attention-mask"
# Control → what it changes in AttnLRP.
CONTROLS = {
    "half-value": "softmax closed",
    "key-closed": "keys closed",
    "query-closed": "queries closed",
    "whole-value": "values whole",
    "cp-lrp": "both: CP-LRP",
}
REMOVED = {
    MASK: "mask",
    "mask": "[MASK]",
    "pad": "[PAD]",
    "unk": "[UNK]",
    "zero": "zero embedding",
    "delete": "deletion",
}


def together(maps: pd.DataFrame, *more: pd.DataFrame) -> pd.DataFrame:
    """Return one model's recorded rows: the texts of all, the default rules, no map twice."""
    rows = pd.concat([maps, *more], ignore_index=True)
    common = set(maps.id).intersection(*(part.id for part in more))
    rows = rows[(rows.rules == "") & rows.id.isin(common)]
    return rows.drop_duplicates(["id", "method", "readout", "removal"], ignore_index=True)


def effects(rows: pd.DataFrame, controls: Mapping[str, str] = CONTROLS) -> pd.DataFrame:
    """Return how r with LOO by the mask changes when a control takes AttnLRP's place.

    By (normalisation, tokens, control's name), with and without [CLS]: the mean change over texts
    at each read-out with its interval, `side_by_side`. `controls`: method → its name in the table.
    """
    found = specifications.agreement(rows[rows.removal.isin(["", MASK])], ["Pearson"])
    curves = {
        name: specifications.curve(specifications.difference(found, control, "attnlrp"))
        for control, name in controls.items()
    }
    table = pd.concat(curves, names=["control"])
    order = pd.MultiIndex.from_product(
        [(RAW, SUM_TO_ONE), (EVERY, NO_CLS), curves], names=["normalisation", "tokens", "control"]
    )
    parts = {place: specifications.at(table, read_out=place) for place in READOUTS}
    return side_by_side(
        {
            place: specifications.by(part, *order.names).reindex(order)
            for place, part in parts.items()
        }
    )


def between_removals(rows: pd.DataFrame, tokens: str = EVERY) -> pd.DataFrame:
    """Return the mean r of the LOO maps of each two removals, (removals, removals).

    `tokens` says which count: a level of `lrputils.study.specifications`.
    """
    loo = rows[rows.method == "loo"]
    maps = loo.assign(method=loo.removal, removal="", readout="word")
    found = specifications.agreement(pd.concat([loo, maps]), ["Pearson"])
    means = specifications.at(found.mean(), tokens=tokens, normalisation=RAW)
    names = [name for name in REMOVED if name in set(loo.removal)]
    wide = specifications.by(means, "method", "removal").unstack("removal").loc[names, names]
    return wide.rename(index=REMOVED, columns=REMOVED).rename_axis(index=None, columns=None)
