"""Agreement with leave-one-out against cost: estimates, verified budgets, and error bars.

It reads the maps of `lrputils.study.remedy`. Exact passes are free here: their result is the exact
map. The coefficient is over a text's own tokens, special ones left out, unless a name says "all".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lrputils import stats
from lrputils.removal.budgeted import (
    Verified,
    calibrate,
    combined,
    half_widths,
    most_relevant,
    plan,
)
from lrputils.study.remedy import BOTH, EXACT, SETTINGS

SHARES = (0.0, 0.1, 0.2, 0.3)
_TOP = 0.2


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
    forward and one backward pass. ValueError if a text's exact map is missing or of another length.
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
    return rest.assign(loo=rest.id.map(known)).reset_index(drop=True)


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


def verified(maps: Maps, counts: Sequence[int]) -> Verified:
    """Put exact scores in the place of so many estimates a text, the largest first."""
    exact = most_relevant(maps.estimate, maps.content, maps.valid, list(counts))
    return combined(maps.estimate, maps.loo, exact, maps.content)


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


def by_budget(rows: pd.DataFrame, budgets: Sequence[float]) -> pd.DataFrame:
    """Return `measures` at each budget, every text by the setting that `plan` picks for it.

    ValueError if such a setting is not among the rows.
    """
    parts = []
    for budget in budgets:
        maps, found = _planned(rows, budget)
        parts += [measures(m, f).assign(budget=budget) for m, f in zip(maps, found, strict=True)]
    return pd.concat(parts, ignore_index=True)


def _planned(rows: pd.DataFrame, budget: float) -> tuple[list[Maps], list[Verified]]:
    """Texts by the setting that `plan` picks for each, with their exact passes spent."""
    tokens = rows.drop_duplicates("id").set_index("id").scores.map(len)
    plans = {text: plan(length, budget) for text, length in tokens.items()}
    names = {text: _name(options) for text, (options, _) in plans.items()}
    maps, found = [], []
    for name in dict.fromkeys(names.values()):
        if name not in set(rows.setting):
            raise ValueError(f"budget={budget} takes the setting {name!r}, which was not measured")
        chosen = padded(rows[rows.id.map(names) == name], name)
        maps.append(chosen)
        found.append(verified(chosen, [plans[text][1] for text in chosen.ids]))
    return maps, found


def _name(options: dict[str, Any]) -> str:
    known = {None: "one-pass", 1: "joint"} | {
        o["groups"]: name for name, o in SETTINGS.items() if list(o) == ["groups"]
    }
    return known[options["groups"]]


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
        factor = calibrate(known, maps.loo[~test], maps.content[~test], level)
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
        ("two forward and backward passes", 0.80, "halves"),
        ("three, by Radau's rule", 0.80, "halves-radau"),
        ("the price of three, exact passes among them", 0.80, 0.4),
        ("half of LOO", 0.95, 0.5),
    ),
    "MPNet, IMDB": (
        ("two forward and backward passes", 0.80, "halves"),
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
