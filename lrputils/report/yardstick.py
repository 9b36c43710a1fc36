"""Tables of chapter 8, from the rows of `lrputils.study.yardstick` and `lrputils.study.planted`."""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.study import planted, yardstick

YARDSTICKS = {
    yardstick.LOO: "LOO",
    yardstick.PAIRS: "LOO + ½ Σ pairs",
    yardstick.SHAPLEY: "Shapley values",
}
KINDS = {"single": "one token", "redundant": "either of two", "and": "both of two"}
QUARTERS = {"redundant": "most redundant quarter", "dependent": "most dependent quarter"}


def label(method: str) -> str:
    """Return what tables and figures call a method or a yardstick."""
    return METHODS[method].label if method in METHODS else YARDSTICKS[method]


def by_yardstick(found: pd.DataFrame) -> pd.DataFrame:
    """Return each method's mean r with each yardstick, by their labels, with intervals.

    Args:
        found: of `lrputils.study.yardstick.agreement`.
    """
    methods = [m for m in found.columns.unique(1) if m in yardstick.METHODS]
    return stats.table(
        {
            (name, label(method)): stats.estimate(found[key, method])
            for key, name in YARDSTICKS.items()
            for method in methods
        }
    )


def between(found: pd.DataFrame) -> pd.DataFrame:
    """Return the mean r of the yardsticks with one another, (yardstick, yardstick)."""
    means = found.mean().unstack(0).loc[list(YARDSTICKS), list(YARDSTICKS)]
    return means.rename(index=YARDSTICKS, columns=YARDSTICKS)


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

    Args:
        found: of `lrputils.study.yardstick.agreement`.
        trust: of `lrputils.study.yardstick.reliability`, of the same texts.

    Returns:
        a row a method: `measured`, and `without noise`, r over the root of the text's reliability.
    """
    r = found[yardstick.SHAPLEY][[*yardstick.METHODS, yardstick.LOO]]
    clean = r.div(trust.reliability.clip(lower=0.25) ** 0.5, axis=0)
    table = pd.DataFrame({"measured": r.mean(), "without noise": clean.mean()})
    return table.rename(index=label)


def departures(found: pd.DataFrame) -> pd.DataFrame:
    """Return where methods depart from LOO, with intervals, by (measure, method's label).

    Args:
        found: of `lrputils.study.yardstick.disagreement`.

    Returns:
        the shares of the departure on the two quarters of the tokens, over their share of the
        tokens (1 says: as often as anywhere), and the partial correlation with ½ Σ_j I_ij.
    """
    parts = {}
    for method, part in found.groupby("method", sort=False):
        for column, name in QUARTERS.items():
            parts[name, label(method)] = stats.estimate(part[column] / part.expected)
        parts["partial r with ½ Σ pairs", label(method)] = stats.estimate(part.partial)
    return stats.table(parts).sort_index(level=0, sort_remaining=False, kind="stable")


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
