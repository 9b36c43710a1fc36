"""Does a map track leave-one-out? The answer under every convention, and what decides it.

A specification says which read-out, which special tokens count, how maps are normalised, what
removal LOO is, which coefficient compares two maps, and which rules an implementation has beside
those for attention. `agreement` gives each text's correlation under each, from the maps of
`lrputils.study.conventions`; the rest compares two methods over this grid, as a specification curve
(Simonsohn, Simmons and Nelson, 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lrputils.stats import t_interval
from lrputils.study.agreement import (
    COEFFICIENTS,
    COUNTED,
    EVERY,
    NO_CLS,
    NO_SEP,
    NORMALISATIONS,
    RAW,
    SUM_TO_ONE,
    WORDS,
    text_agreement,
)

__all__ = ["EVERY", "NORMALISATIONS", "NO_CLS", "NO_SEP", "RAW", "SUM_TO_ONE", "WORDS"]
TOKENS = COUNTED
DEFAULT = "default"
# With the plain gradient of LayerNorm or GELU neither method is what was published: both were
# recorded, and neither is a choice.
VARIED_RULES = (DEFAULT, "norm=held", "head=gradient")
CHOICES = ["rules", "read-out", "tokens", "normalisation", "removal", "coefficient"]


def agreement(
    rows: pd.DataFrame, coefficients: Sequence[str] = tuple(COEFFICIENTS)
) -> pd.DataFrame:
    """Return the correlation with LOO of every text's maps, a column a specification.

    Dividing by a sum scales a map, and no coefficient sees a positive scale: what "sum to one" does
    to a correlation is the sign of the two sums, over the tokens that count. Dividing by the sum of
    absolute values would do nothing at all. `rows` are those of `lrputils.study.conventions.maps`.

    Returns:
        (texts, specifications), float32, the columns' levels "method" and `CHOICES`. NaN where
        fewer than two tokens count, a map is constant over them, or a sum to divide by is zero.
    """
    loo = rows.method == "loo"
    labels = rows[~loo].drop_duplicates(["method", "rules", "readout"])
    labels = [
        (method, rules or DEFAULT, readout)
        for method, rules, readout in labels[["method", "rules", "readout"]].to_numpy()
    ]
    removals = list(rows[loo].removal.unique())
    ordered = pd.concat([rows[loo], rows[~loo]])
    found = {
        text: text_agreement(
            np.stack(part.scores), part.content.iloc[0], len(removals), TOKENS, coefficients
        ).ravel()
        for text, part in ordered.groupby("id", sort=False)
    }
    columns = [
        (*label, tokens, normalisation, removal, coefficient)
        for tokens in TOKENS
        for coefficient in coefficients
        for normalisation in NORMALISATIONS
        for removal in removals
        for label in labels
    ]
    columns = pd.MultiIndex.from_tuples(columns, names=["method", *CHOICES])
    return pd.DataFrame(np.stack(list(found.values())), list(found), columns, dtype=np.float32)


def difference(found: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """Return `first − second`, two methods of `agreement`, by text: (texts, `CHOICES`).

    Under each specification that has both: a method whose other rules were not varied has the
    default.
    """
    left, right = found[first], found[second]
    common = left.columns.intersection(right.columns, sort=False)
    return left[common] - right[common]


def curve(differences: pd.DataFrame) -> pd.DataFrame:
    """Return each specification's mean over texts with its own 95% interval, least first.

    Indexed by its choices; columns `value`, `low`, `high`, of `lrputils.stats.t_interval`.
    """
    low, high = t_interval(differences)
    table = {"value": differences.mean().to_numpy(), "low": low, "high": high}
    return pd.DataFrame(table, index=differences.columns).sort_values("value", kind="stable")


def across(parts: Mapping[tuple[str, str], pd.DataFrame]) -> pd.DataFrame:
    """Return curves of several runs, by model and data, as one, these two choices first."""
    return pd.concat(parts, names=["model", "data"]).sort_values("value", kind="stable")


def importance(values: pd.Series) -> pd.DataFrame:
    """Return how much of the variance over a balanced grid each choice explains.

    `values` holds one a specification, indexed by the choices.

    Returns:
        By choice, largest first: `alone`, the variance of the means of its values, as a share of
        the whole (its main effect); `with others`, the mean variance that is left where only this
        choice is free (Sobol's total effect). They differ by what the choice does together with
        others. A choice that was not varied has no row.

    Raises:
        ValueError: the grid is not balanced.
    """
    levels = [values.index.unique(level) for level in values.index.names]
    full = pd.MultiIndex.from_product(levels)
    if len(full) != len(values) or values.index.has_duplicates:
        raise ValueError(f"{len(values)} specifications are no balanced grid of {len(full)}")
    grid = values.reindex(full).to_numpy(float).reshape([len(level) for level in levels])
    axes = range(grid.ndim)
    shares = {
        name: (
            grid.mean(axis=tuple(other for other in axes if other != axis)).var(),
            grid.var(axis=axis).mean(),
        )
        for axis, name in enumerate(values.index.names)
        if grid.shape[axis] > 1
    }
    table = pd.DataFrame.from_dict(shares, orient="index", columns=["alone", "with others"])
    table = table / grid.var()
    return table.iloc[(-table["with others"]).round(9).argsort(kind="stable")]  # ties stay


def outcome(table: pd.DataFrame) -> pd.Series:
    """Return the share of specifications whose interval is above zero, below, or reaches it."""
    above, below = (table.low > 0).mean(), (table.high < 0).mean()
    return pd.Series({"above": above, "below": below, "undecided": 1 - above - below})


def reversals(table: pd.DataFrame) -> pd.DataFrame:
    """Return by choice how often changing it alone reverses the answer, most often first.

    Compared are all pairs of specifications that differ in this choice alone, so that a choice with
    many values is not counted for their number: `reversed`, the share of pairs with one interval
    above zero and the other below; `undecided`, the share in which one of them, or both, reaches
    zero: nothing can be reversed there. A choice that never varies alone has no row.
    """
    signs = np.sign((table.low > 0) * 1.0 - (table.high < 0))
    found = {}
    for level in table.index.names:
        wide = signs.unstack(level).to_numpy()
        pairs = [wide[:, i] * wide[:, j] for j in range(wide.shape[1]) for i in range(j)]
        both = np.concatenate([*pairs, [np.nan]])
        both = both[~np.isnan(both)]
        if len(both):
            found[level] = {"reversed": (both < 0).mean(), "undecided": (both == 0).mean()}
    frame = pd.DataFrame.from_dict(found, orient="index", columns=["reversed", "undecided"])
    return frame.sort_values("reversed", ascending=False, kind="stable")


def at(table: pd.DataFrame, **choices: Any) -> pd.DataFrame:
    """Return the rows of a curve that have these choices, a name or a list of names each.

    Write `read_out` for "read-out".
    """
    levels = {name.replace("_", "-"): value for name, value in choices.items()}
    kept = np.ones(len(table), bool)
    for level, wanted in levels.items():
        wanted = [wanted] if isinstance(wanted, str) else list(wanted)
        kept &= table.index.get_level_values(level).isin(wanted)
    return table[kept]


def by(table: pd.DataFrame, *levels: str) -> pd.DataFrame:
    """Return a table indexed by these levels alone, in this order."""
    table = table.droplevel([name for name in table.index.names if name not in levels])
    return table.reorder_levels(levels) if len(levels) > 1 else table
