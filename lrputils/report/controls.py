"""Why AttnLRP and CP-LRP differ, as tables: recorded maps in which one thing changes at a time.

The two methods part at attention, and twice. The controls of `lrputils.study.conventions` change
one of their decisions. Every table is made from `lrputils.study.specifications.agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lrputils import stats
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
# Without a word on keys or queries, and with the literal identity.
SOFTMAX = {name: CONTROLS[name] for name in ("half-value", "whole-value", "cp-lrp")}
SOFTMAX["identity"] = "identity for the softmax"
REMOVED = {
    MASK: "mask",
    "mask": "[MASK]",
    "pad": "[PAD]",
    "unk": "[UNK]",
    "zero": "zero embedding",
    "delete": "deletion",
}
# Where the order of the two methods is looked up: read-out and the tokens that count.
_SETTINGS = {
    "word": ("word", EVERY),
    "post-norm": ("post-norm", EVERY),
    "post-norm, no [CLS]": ("post-norm", NO_CLS),
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


def first_token(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what each map gives to its first token, [CLS]: its score over the sum of all |scores|.

    A row for LOO by the mask, AttnLRP and each of its controls, columns the read-outs, mean over
    texts with interval (LOO has the same in each), and `negative sum`, the share of maps, at the
    sum, that sum to less than zero.
    """
    rows = rows[rows.removal.isin(["", MASK])]
    share = rows.scores.map(lambda scores: scores[0] / np.abs(scores).sum())
    below = rows.scores.map(lambda scores: scores.sum() < 0)
    keys = ["method", "readout"]
    wide = rows.assign(share=share).pivot(index="id", columns=keys, values="share")
    below = rows.assign(below=below).groupby(keys).below.mean()
    named = {"loo": "LOO", "attnlrp": "AttnLRP", **CONTROLS}
    at = {place: {m: (m, place if m != "loo" else "") for m in named} for place in READOUTS}
    parts = {
        place: stats.table({named[m]: stats.estimate(wide[key]) for m, key in keys.items()})
        for place, keys in at.items()
    }
    frame = side_by_side(parts)
    frame["negative sum"] = [float(below[key]) for key in at["sum"].values()]
    return frame


def survival(rows: pd.DataFrame) -> pd.DataFrame:
    """Return AttnLRP − CP-LRP, raw, under every removal, and under every coefficient by the mask.

    Columns are the read-outs and tokens of `_SETTINGS`, with intervals, `side_by_side`.
    """
    rows = rows[rows.method.isin(["loo", "attnlrp", "cp-lrp"])]
    found = specifications.agreement(rows)
    gaps = specifications.difference(found, "attnlrp", "cp-lrp")
    table = specifications.at(specifications.curve(gaps), normalisation=RAW)
    parts = {}
    for name, (place, tokens) in _SETTINGS.items():
        part = specifications.at(table, read_out=place, tokens=tokens)
        masked = specifications.by(specifications.at(part, removal=MASK), "coefficient")
        masked = masked.loc[list(specifications.COEFFICIENTS)].rename("{}, mask".format)
        others = specifications.by(specifications.at(part, coefficient="Pearson"), "removal")
        others = others.loc[[name for name in REMOVED if name in others.index and name != MASK]]
        parts[name] = pd.concat([masked, others.rename(lambda name: f"Pearson, {REMOVED[name]}")])
    return side_by_side(parts)


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
