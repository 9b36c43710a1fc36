"""Agreement with leave-one-out against cost: estimates, verified budgets, and error bars.

It reads the maps of `lrputils.study.remedy`. Exact passes are free here: their result is the exact
map. The coefficient is over a text's own tokens, special ones left out, unless a name says "all".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.removal.budgeted import Verified, bar_factor, half_widths, most_relevant, plan
from lrputils.removal.calibration import fitted
from lrputils.removal.combined import Calibration, at_one_size, plain
from lrputils.study.remedy import BOTH, EXACT, MEANS

SHARES = (0.0, 0.1, 0.2, 0.3)
_TOP = 0.2
# Groups → the setting that has them.
_GROUPED = {groups: name.removeprefix("one + ") for name, groups in MEANS.items()}


class Maps(NamedTuple):
    """One setting's maps of all texts, and the exact ones: (texts, tokens) each, padded.

    `content` is false at special tokens and padding, `valid` at padding; `passes`, (texts,), counts
    forward passes a text.
    """

    ids: tuple[str, ...]
    estimate: Tensor
    loo: Tensor
    content: Tensor
    valid: Tensor
    passes: Tensor

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return self.valid.sum(1).tolist()


def with_exact(rows: pd.DataFrame, maps: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return rows of `remedy.maps` with a column `loo`, the exact map of each row's text.

    It is taken from the setting "loo", or from `maps`, rows of `lrputils.study.conventions.maps`
    for the same texts; AttnLRP and CP-LRP at the word embeddings are then further settings, of one
    forward and one backward pass. So are the means of `MEANS` whose two maps are there. ValueError
    if a text's exact map is missing or of another length.
    """
    rows = rows.assign(id=rows.id.astype(str))
    exact = rows[rows.setting == EXACT]
    rest = rows[rows.setting != EXACT]
    if maps is not None:
        maps = maps[maps.id.astype(str).isin(rows.id)].assign(id=lambda m: m.id.astype(str))
        exact = maps[(maps.method == EXACT) & (maps.removal == "attention-mask")]
        lrp = maps[(maps.rules == "") & (maps.readout == "word")]
        lrp = lrp[lrp.method.isin(["attnlrp", "cp-lrp"])].assign(passes=BOTH, seconds=np.nan)
        columns = ["id", "method", "passes", "seconds", "scores", "content"]
        rest = pd.concat([rest, lrp[columns].rename(columns={"method": "setting"})])
    known = dict(zip(exact.id, exact.scores, strict=True))
    missing = [
        i for i, s in zip(rest.id, rest.scores, strict=True) if len(known.get(i, ())) != len(s)
    ]
    if missing:
        raise ValueError(f"no exact map of the same length for the texts {sorted(set(missing))}")
    rest = rest.assign(loo=rest.id.map(known))
    settings = set(rest.setting)
    means = [_mean(rest, name) for name in MEANS if {"one-pass", _GROUPED[MEANS[name]]} <= settings]
    return pd.concat([rest, *means], ignore_index=True)


def _mean(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of one of `MEANS`, from those of its two settings."""
    one, other = (rows[rows.setting == part] for part in ("one-pass", _GROUPED[MEANS[name]]))
    maps, grouped = padded(rows, "one-pass"), padded(rows, _GROUPED[MEANS[name]])
    shapes = at_one_size(maps.estimate, grouped.estimate, maps.content, MEANS[name])
    scores = shapes @ shapes.new_tensor(plain(MEANS[name]))
    parts = [row[:length].numpy() for row, length in zip(scores, maps.lengths, strict=True)]
    cost = {c: one[c].to_numpy() + other[c].to_numpy() for c in ("passes", "seconds")}
    return one.assign(setting=name, scores=pd.Series(parts, index=one.index), **cost)


def padded(rows: pd.DataFrame, setting: str) -> Maps:
    """Return one setting's rows, of `with_exact`, as tensors."""
    rows = rows[rows.setting == setting]

    def tensor(column: str, kind: Any) -> Tensor:
        return pad_sequence([torch.tensor(np.array(x, kind)) for x in rows[column]], True)

    lengths = torch.tensor([len(scores) for scores in rows.scores])
    valid = torch.arange(int(lengths.max())) < lengths[:, None]
    return Maps(
        tuple(rows.id),
        tensor("scores", np.float64),
        tensor("loo", np.float64),
        tensor("content", bool),
        valid,
        torch.tensor(rows.passes.to_numpy()),
    )


def verified(maps: Maps, counts: Sequence[int], counted: str = "content") -> Verified:
    """Put exact scores in the place of so many estimates a text, the largest first.

    Where "all" tokens are counted, those of special tokens come before them.
    """
    first = counted == "all"
    exact = most_relevant(maps.estimate, maps.content, maps.valid, list(counts), first)
    return Verified(torch.where(exact, maps.loo, maps.estimate), maps.estimate, exact)


def fit(rows: pd.DataFrame, texts: Collection[str] | None = None, groups: int = 2) -> Calibration:
    """Return `lrputils.calibrate` of the rows of `with_exact`, of all texts or of some ids."""
    if texts is not None:
        rows = rows[rows.id.isin(set(texts))]
    one, other = padded(rows, "one-pass"), padded(rows, _GROUPED[groups])
    maps = zip(one.estimate, other.estimate, one.loo, one.content, strict=True)
    return fitted([tuple(x[None] for x in text) for text in maps], groups)


def calibrated(rows: pd.DataFrame, how: Calibration) -> pd.DataFrame:
    """Return `measures` of the mask gradient with this calibration, on rows of `with_exact`."""
    one, other = padded(rows, "one-pass"), padded(rows, _GROUPED[how.groups])
    shapes = at_one_size(one.estimate, other.estimate, one.content, how.groups)
    scores = shapes @ shapes.new_tensor(how.coefficients)
    maps = one._replace(estimate=scores, passes=one.passes + other.passes)
    return measures(maps, verified(maps, [0] * len(one.ids)))


def held_out(rows: pd.DataFrame, groups: int = 2, folds: int = 5) -> pd.DataFrame:
    """Return `calibrated` of every text, by coefficients of the texts of the other folds."""
    ids = rows.id.unique()
    parts = []
    for test in (ids[number::folds] for number in range(folds)):
        how = fit(rows, set(ids) - set(test), groups)
        parts.append(calibrated(rows[rows.id.isin(test)], how))
    return pd.concat(parts, ignore_index=True)


def measures(maps: Maps, found: Verified) -> pd.DataFrame:
    """Return how scores agree with leave-one-out, a row a text.

    Columns: `id`, `tokens`, `passes` (the exact ones included), `cost` (their share of
    leave-one-out's), `r`, `r_all` (special tokens included), `spearman`, `top` (share of the fifth
    of the tokens of largest |LOO| that is in the same fifth of the scores), `error` (mean absolute,
    in logits) and `relative` (that over the mean |LOO|).
    """
    scores, loo, where = found.scores, maps.loo, maps.content
    error = ((scores - loo).abs() * where).sum(1)
    passes = maps.passes + found.exact.sum(1)
    tokens = maps.valid.sum(1)
    columns = {
        "tokens": tokens,
        "passes": passes,
        "cost": passes / tokens,
        "r": stats.pearson(scores, loo, where),
        "r_all": stats.pearson(scores, loo, maps.valid),
        "spearman": stats.spearman(scores, loo, where),
        "top": _overlap(scores, loo, where),
        "error": error / where.sum(1),
        "relative": error / (loo.abs() * where).sum(1),
    }
    return pd.DataFrame({"id": maps.ids} | {k: np.asarray(v) for k, v in columns.items()})


def _overlap(scores: Tensor, loo: Tensor, where: Tensor) -> Tensor:
    counts = (where.sum(1) * _TOP).ceil().long().tolist()
    ours, theirs = (most_relevant(x, where, where, counts) for x in (scores, loo))
    return (ours & theirs).sum(1) / ours.sum(1)


def compared(rows: pd.DataFrame, shares: Sequence[float] = SHARES) -> pd.DataFrame:
    """Return `measures` of every setting of `with_exact`, and of it with a share of tokens exact.

    A row a text, `setting` and `verified`: the share of the text's tokens, rounded down.
    """
    parts = []
    for setting in rows.setting.unique():
        maps = padded(rows, setting)
        for share in shares:
            counts = [int(share * length) for length in maps.lengths]
            part = measures(maps, verified(maps, counts))
            parts.append(part.assign(setting=setting, verified=share))
    return pd.concat(parts, ignore_index=True)


def by_budget(
    rows: pd.DataFrame,
    budgets: Sequence[float],
    *,
    setting: str | None = None,
    zeros: bool = False,
    counted: str = "content",
) -> pd.DataFrame:
    """Return `measures` at each budget, of rows of `with_exact`.

    Every text is estimated by the setting that `plan` picks for it, or by this `setting`, which
    also ranks; what is left of the budget are exact passes. `zeros` stand in the place of what is
    estimated. `counted` is that of `lrputils.removal.budgeted.budgeted_loo`. ValueError if a
    setting is not among the rows.
    """
    parts = []
    for budget in budgets:
        for maps, left in _planned(rows, budget, setting):
            found = verified(maps, left, counted)
            if zeros:
                found = found._replace(scores=torch.where(found.exact, found.scores, 0.0))
            parts.append(measures(maps, found).assign(budget=budget))
    return pd.concat(parts, ignore_index=True)


def _planned(
    rows: pd.DataFrame, budget: float, setting: str | None
) -> Iterator[tuple[Maps, list[int]]]:
    """Texts by the setting that is taken for them, with the exact passes that are left."""
    tokens = rows.drop_duplicates("id").set_index("id").scores.map(len)
    plans = {text: plan(length, budget) for text, length in tokens.items()}
    names = {text: setting or _name(options) for text, (options, _) in plans.items()}
    for name in dict.fromkeys(names.values()):
        if name not in set(rows.setting):
            raise ValueError(f"budget={budget} takes the setting {name!r}, which was not measured")
        maps = padded(rows[rows.id.map(names) == name], name)
        spent = zip(maps.lengths, maps.passes.tolist(), strict=True)
        left = [max(0, int(budget * length) - cost) for length, cost in spent]
        yield maps, left if setting else [plans[text][1] for text in maps.ids]


def _name(options: dict[str, Any]) -> str:
    known = {groups: name for name, groups in MEANS.items()}
    return known.get(options.get("groups"), "one-pass")


def coverage(
    rows: pd.DataFrame, setting: str, share: float, level: float = 0.9, folds: int = 5
) -> pd.DataFrame:
    """Return how often error bars hold the exact score, on texts they were not calibrated on.

    A part of the texts at a time, of `folds`, is tested with bars calibrated on the others to hold
    a share `level`; `share` of the tokens are verified. A row a text: `id`, `covered` (share of its
    estimated tokens), `width` (their bars' mean half width over the text's mean |LOO|).
    """
    maps = padded(rows, setting)
    found = verified(maps, [int(share * length) for length in maps.lengths])
    fold = torch.arange(len(maps.ids)) % folds
    parts = []
    for number in range(folds):
        test = fold == number
        known, asked = (Verified(*(x[part] for x in found)) for part in (~test, test))
        factor = bar_factor(known, maps.loo[~test], maps.content[~test], level)
        where, loo = maps.content[test], maps.loo[test]
        width = half_widths(asked, where, factor)
        inside = (asked.scores - loo).abs() <= width
        open_ = where & ~asked.exact
        count = open_.sum(1)
        size = (loo.abs() * where).sum(1) / where.sum(1)
        columns = {
            "covered": (inside & open_).sum(1) / count,
            "width": (width * open_).sum(1) / count / size,
        }
        names = [maps.ids[i] for i in test.nonzero().flatten().tolist()]
        parts.append(pd.DataFrame({"id": names} | {k: v.numpy() for k, v in columns.items()}))
    return pd.concat(parts, ignore_index=True)


def table(rows: pd.DataFrame, by: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return by group `texts`, each column's mean, and `low` and `high`, r's 95% interval."""
    found = {}
    for key, part in rows.groupby(list(by), sort=False):
        interval = stats.estimate(part.r)
        means = {name: part[name].mean() for name in columns}
        found[key] = {"texts": len(part), **means, "low": interval.low, "high": interval.high}
    index = pd.MultiIndex.from_tuples(found, names=by) if len(by) > 1 else None
    frame = pd.DataFrame(list(found.values()), index=index)
    return frame if index is not None else frame.set_axis([key[0] for key in found])


# What was asked of each recorded model: in words, r, and the setting or the budget that answers.
AIMS: dict[str, tuple[tuple[str, float, str | float], ...]] = {
    "MiniLM, SST-2": (
        ("one forward and backward pass", 0.90, "one-pass"),
        ("a quarter of LOO", 0.97, 0.25),
    ),
    "MiniLM, IMDB": (
        ("one forward and backward pass", 0.95, "one-pass"),
        ("a quarter of LOO", 0.99, 0.25),
    ),
    "MPNet, SST-2": (
        ("three forward and backward passes", 0.80, "one + halves"),
        ("half of LOO", 0.95, 0.5),
    ),
    "MPNet, IMDB": (
        ("three forward and backward passes", 0.80, "one + halves"),
        ("half of LOO", 0.95, 0.5),
    ),
}


def aims(runs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return what was asked of each run, name → rows of `with_exact`, and what it reached.

    A row an aim: `allowed`, `aim`, `r` with the ends of its interval, `passes`, `texts`.
    """
    found = {}
    for run, rows in runs.items():
        for allowed, aim, how in AIMS.get(run, ()):
            by = "setting" if isinstance(how, str) else "budget"
            part = compared(rows[rows.setting == how], [0.0]) if by == "setting" else None
            part = by_budget(rows, [how]) if part is None else part
            line = table(part, [by], ["passes", "r"]).iloc[0]
            found[f"{run}: {allowed}"] = {"aim": aim, **line}
    frame = pd.DataFrame.from_dict(found, orient="index").astype({"texts": int})
    return frame[["aim", "r", "low", "high", "passes", "texts"]]
