"""From maps to correlations with leave-one-out, under a convention, with intervals over texts.

A convention says which tokens count, whether maps are divided by their sums, and which coefficient
compares two maps; the frame of maps (`experiments.frame`) has the choices made before. Every
result is a long table again, so that a study is a filter and a `groupby`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from lrputils import stats
from lrputils.mistakes import one_of
from lrputils.study.by_text import CORRELATIONS

Array = np.ndarray
NORMALISATIONS = RAW, SUM_TO_ONE = "raw", "sum to one"
COUNTED = EVERY, NO_CLS, NO_SEP, WORDS = "all", "no [CLS]", "no [SEP]", "neither"
LOO = "loo"


def _ranks(maps: Array) -> Array:
    return stats.centred(rankdata(maps, axis=1))


def _signs(maps: Array) -> Array:
    first, second = np.triu_indices(maps.shape[1], 1)
    maps = maps.astype(np.float32)  # as recorded: equal stays equal
    return np.sign(maps[:, first] - maps[:, second])


# Each coefficient is the cosine of two maps seen in one of these ways: one product of matrices
# compares all maps of a text, where `lrputils.stats.pearson` takes a pair at a time.
COEFFICIENTS: dict[str, Callable[[Array], Array]] = {
    "Pearson": stats.centred,
    "Spearman": _ranks,
    "Kendall": _signs,  # τ-b
}


def agreement(
    maps: pd.DataFrame,
    counted: Sequence[str] = (EVERY,),
    normalisations: Sequence[str] = (RAW,),
    coefficients: Sequence[str] = ("Pearson",),
) -> pd.DataFrame:
    """Return the correlation of every map with leave-one-out of its text, under each convention.

    Dividing by a sum scales a map, and no coefficient sees a positive scale: what `SUM_TO_ONE` does
    to a correlation is the sign of the two sums, over the tokens that count. Dividing by the sum of
    absolute values would do nothing at all.

    Args:
        maps: rows of `experiments.frame.read_maps`; those of method "loo" are the references, one
            a removal, and a text without one is left out.
        counted: which tokens count, of `COUNTED`: all, all but [CLS], all but [SEP], neither.
        normalisations: of `NORMALISATIONS`.
        coefficients: of `COEFFICIENTS`.

    Returns:
        a row a map, removal and convention: the columns of `maps` but `scores` and `content`;
        `removal` is that of leave-one-out; `counted`, `normalisation`, `coefficient`; `r`, NaN
        where fewer than two tokens count, a map is constant over them, or a sum to divide by is
        zero. In the order of the texts.

    Raises:
        ValueError: an unknown convention, or maps of which no text has a reference.
    """
    chosen = {"counted": counted, "coefficient": coefficients, "normalisation": normalisations}
    known = {"counted": COUNTED, "coefficient": COEFFICIENTS, "normalisation": NORMALISATIONS}
    for name, given in chosen.items():
        for convention in given:
            one_of(name, convention, known[name])
    maps = maps.reset_index(drop=True)
    exact = (maps.method == LOO).to_numpy()
    kept = [NORMALISATIONS.index(name) for name in normalisations]
    conventions = pd.DataFrame(product(*chosen.values()), columns=[*chosen])
    rows, removals, values = [], [], []
    scores, content = maps.scores.to_numpy(), maps.content.to_numpy()
    removal = maps.removal.to_numpy(object)
    for part in maps.groupby(["model", "data", "id"], sort=False, observed=True).indices.values():
        first, others = part[exact[part]], part[~exact[part]]
        if len(first) and len(others):
            own = np.stack(scores[[*first, *others]])
            words = np.asarray(content[part[0]], bool)
            r = _text_agreement(own, words, len(first), counted, coefficients)
            values.append(r[:, :, kept].ravel())
            rows.append(np.tile(others, len(conventions) * len(first)))
            removals.append(np.tile(np.repeat(removal[first], len(others)), len(conventions)))
    if not values:
        raise ValueError("no text has both leave-one-out and another map")
    frame = maps.drop(columns=["scores", "content", "removal"])
    frame = frame.take(np.concatenate(rows)).reset_index(drop=True)
    frame["removal"] = pd.Categorical(np.concatenate(removals))
    each = [np.repeat(conventions.index, len(r) // len(conventions)) for r in values]
    told = conventions.take(np.concatenate(each))
    for name, levels in chosen.items():
        frame[name] = pd.Categorical(told[name], categories=dict.fromkeys(levels))
    return frame.assign(r=np.concatenate(values).astype(np.float32))


def _text_agreement(
    maps: Array,
    content: Array,
    references: int,
    counted: Sequence[str],
    coefficients: Sequence[str],
) -> Array:
    """One text's correlations of its later maps with its first `references` ones.

    Returns (counted, coefficients, raw and divided by the sum, references, other maps).
    """
    parts = []
    for where in _where(content, counted):
        own = maps[:, where].astype(np.float64)
        signs = stats.sum_signs(own)
        flips = signs[:references, None] * signs[references:]
        for name in coefficients:
            seen = stats.unit(COEFFICIENTS[name](own))
            r = seen[:references] @ seen[references:].T
            parts.append([r, r * flips])
    others = len(maps) - references
    shape = len(counted), len(coefficients), len(NORMALISATIONS), references, others
    return np.array(parts).reshape(shape)


def _where(content: Array, counted: Sequence[str]) -> Iterator[Array]:
    """Which tokens count: all, all but a special first one, but a special last one, the words."""
    for name in counted:
        where = np.ones_like(content)
        if name in (NO_CLS, WORDS):
            where[0] = content[0]
        if name in (NO_SEP, WORDS):
            where[-1] = content[-1]
        yield content if name == WORDS else where


def over_texts(
    rows: pd.DataFrame, by: str | Sequence[str], column: str = "r", **options: Any
) -> pd.DataFrame:
    """Return a column's mean over texts with its 95% interval, for each group.

    The interval of a correlation ends at ±1.

    Args:
        rows: a row a text in each group, as of `agreement`.
        by: columns that make a group; the result is indexed by them, in the order of the rows.
        column: what is averaged; NaN is left out.
        options: of `lrputils.stats.estimate`.

    Returns:
        the fields of `lrputils.stats.Estimate`.

    Raises:
        ValueError: a group has a text twice: `by` leaves a choice open.
    """
    by = [by] if isinstance(by, str) else list(by)
    if column in CORRELATIONS:
        options = {"within": stats.CORRELATION, **options}
    found = {}
    for name, part in rows.groupby(by if by[1:] else by[0], sort=False, observed=True):
        if part[[c for c in ("model", "data", "id") if c in part]].duplicated().any():
            raise ValueError(f"{name}: a text twice; {by} leave a choice of the rows open")
        found[name] = stats.estimate(part[column].to_numpy(float), **options)
    return stats.table(found).rename_axis(by)


def compare(
    rows: pd.DataFrame,
    first: str,
    second: str,
    by: str | Sequence[str] = (),
    *,
    of: str = "method",
    column: str = "r",
) -> pd.DataFrame:
    """Return the mean of `first − second` over texts that have both, and which of them leads.

    Args:
        rows: as of `agreement`.
        first: a value of the column `of`.
        second: another one.
        by: columns that make a group; all rows are one if not given.
        of: which column's values are compared.
        column: whose values are subtracted.

    Returns:
        the fields of `lrputils.stats.Difference`, indexed by `by`: the mean with Student's
        interval; `share`, of texts in which the first is ahead, with its exact interval; the
        median; and `lead`, the verdict (`lrputils.stats.leads`), against one more text that is
        worth 1 in a correlation, in `delta` the larger of the two means, else nothing.

    Raises:
        ValueError: a text twice in a group, or no text that has both.
    """
    by = [by] if isinstance(by, str) else list(by)
    text = [name for name in ("model", "data", "id") if name in rows]
    keys = list(dict.fromkeys([*by, *text]))
    sides = [
        rows[rows[of] == name].set_index(keys)[column].astype(float) for name in (first, second)
    ]
    for name, side in zip((first, second), sides, strict=True):
        if side.index.has_duplicates:
            raise ValueError(f"{name}: a text twice; {by} leave a choice of the rows open")
    both = dict(zip(("first", "second"), sides[0].align(sides[1]), strict=True))
    pairs = pd.DataFrame(both).dropna().reset_index()
    if pairs.empty:
        short = "; a text of one token has no correlation" if column in CORRELATIONS else ""
        raise ValueError(f"no text has {column} of both {first!r} and {second!r}{short}")
    groups = [(f"{first} − {second}", pairs)]
    if by:
        groups = pairs.groupby(by if by[1:] else by[0], sort=False, observed=True)
    differences = {}
    for name, of_group in groups:
        doubt = float(column in CORRELATIONS)
        if column == "delta":
            doubt = float(of_group[["first", "second"]].mean().max())
        differences[name] = stats.paired_difference(
            of_group["first"], of_group["second"], doubt=doubt
        )
    table = stats.table(differences)
    return table.rename_axis(by) if by else table
