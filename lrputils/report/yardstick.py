"""Tables of chapter 8, from the rows of `lrputils.study.yardstick` and `lrputils.study.planted`."""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.report import controls
from lrputils.study import planted, specifications, yardstick

YARDSTICKS = {
    yardstick.LOO: "LOO",
    yardstick.PAIRS: "LOO + ½ Σ pairs",
    yardstick.SHAPLEY: "Shapley values",
}
KINDS = {"single": "one token", "redundant": "either of two", "and": "both of two"}
QUARTERS = {"redundant": "most redundant quarter", "dependent": "most dependent quarter"}

# Methods of `results/maps`, compared under every removal.
MAPPED = ("mask-gradient", "attnlrp", "cp-lrp")
PARTIAL = "partial r with ½ Σ pairs"


def label(method: str) -> str:
    """Return what tables and figures call a method or a yardstick."""
    return METHODS[method].label if method in METHODS else YARDSTICKS[method]


def by_removal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's r with LOO by each removal, (texts, (method, removal)), by their labels.

    From rows of `lrputils.study.conventions.maps`: raw maps, read at the words; special tokens do
    not count.
    """
    kept = rows[rows.method.isin(["loo", *MAPPED]) & (rows.rules == "")]
    kept = kept[kept.readout.isin(["", "word"])]
    choices = {"tokens": specifications.WORDS, "normalisation": specifications.RAW}
    found = specifications.at(specifications.agreement(kept, ["Pearson"]).T, **choices)
    found = specifications.by(found, "method", "removal").T
    order = [(m, r) for m in MAPPED for r in controls.REMOVED if (m, r) in found.columns]
    return found[order].rename(columns={**controls.REMOVED, **{m: label(m) for m in MAPPED}})


def by_yardstick(found: pd.DataFrame) -> pd.DataFrame:
    """Return each method's mean r with each yardstick, of `yardstick.agreement`, with intervals."""
    methods = [m for m in found.columns.unique(1) if m in yardstick.METHODS]
    return stats.table(
        {
            (name, label(method)): stats.estimate(found[key, method])
            for key, name in YARDSTICKS.items()
            for method in methods
        }
    )


def contrast(found: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return `first − second` in r with each yardstick, paired by text, with intervals."""
    return stats.table(
        {
            name: stats.paired_difference(found[key, first], found[key, second])
            for key, name in YARDSTICKS.items()
        }
    )


def corrected(found: pd.DataFrame, trust: pd.DataFrame) -> pd.DataFrame:
    """Return the mean r with sampled Shapley values, as measured and without their noise.

    From `yardstick.agreement` and `yardstick.reliability` of the same texts; a row a method:
    `measured`, and `without noise`, r over the root of the text's reliability.
    """
    r = found[yardstick.SHAPLEY][[*yardstick.METHODS, yardstick.LOO]]
    clean = r.div(trust.reliability.clip(lower=0.25) ** 0.5, axis=0)
    table = pd.DataFrame({"measured": r.mean(), "without noise": clean.mean()})
    return table.rename(index=label)


def accounted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how much of f(all) − f(none) the scores add up to, with intervals.

    Shapley values sum to it exactly, order by order, so theirs is the denominator.
    """
    sums = pd.DataFrame(
        [{name: maps[name].sum() for name in YARDSTICKS} for _, maps in yardstick.by_text(rows)]
    )
    whole = sums[yardstick.SHAPLEY]
    return stats.table({n: stats.ratio_of_means(sums[k], whole) for k, n in YARDSTICKS.items()})


def departures(found: pd.DataFrame) -> pd.DataFrame:
    """Return where methods depart from LOO, with intervals, by (measure, method's label).

    From `yardstick.disagreement`: the shares of the departure on the two quarters of the tokens,
    over their share of the tokens (1 says: as often as anywhere), and the partial correlation with
    ½ Σ_j I_ij.
    """
    by_method = dict(list(found.groupby("method", sort=False)))
    measures = {
        **{
            name: lambda part, c=column: part[c] / part.expected
            for column, name in QUARTERS.items()
        },
        PARTIAL: lambda part: part.partial,
    }
    return stats.table(
        {
            (name, label(method)): stats.estimate(measure(part))
            for name, measure in measures.items()
            for method, part in by_method.items()
        }
    )


def hits(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the hit rates of `lrputils.study.planted.found`, by labels, with intervals."""
    return planted.summary(rows).rename(index={**KINDS, **{m: label(m) for m in planted.METHODS}})


def values(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a deciding token's mean score by method and kind, the rule's own values last."""
    wide = rows.groupby(["method", "kind"], sort=False).value.mean().unstack()[list(KINDS)]
    wide = wide.rename(index=label)
    for name in ("loo", "shapley"):
        wide.loc[f"by the rule: {label(name)}"] = {k: v[name] for k, v in planted.TRUTH.items()}
    return wide.rename(columns=KINDS)
