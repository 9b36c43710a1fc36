"""Agreement with leave-one-out against cost: estimates and verified budgets.

It reads the maps of `lrputils.study.remedy`. Exact passes are free here: their result is the exact
map. The coefficient is over a text's own tokens, special ones left out, unless a name says "all".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.removal.budgeted import Verified, most_relevant, plan
from lrputils.removal.combined import at_one_size, plain
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
