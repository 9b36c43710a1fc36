"""The layer ablations as tables: their means beside the paper's, and the gain of each layer.

Takes what was measured, from an evaluation or a recording, and measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import pandas as pd

from lrputils import paper, stats

RAW, SUM_TO_ONE = "raw r", "maps divided by their sums"
# convention → column of an evaluation's rows
CONVENTIONS = {RAW: "r", SUM_TO_ONE: "r_normalised"}
# What Table A3 prints, and raw r behind it → column of an evaluation's rows
_PRINTED = {"r": "r_normalised", "LeRF": "lerf", "MoRF": "morf", "Δ": "delta", RAW: "r"}
_BASELINES = ("attnlrp", "cp-lrp")
_ABLATION = re.compile(r"(front|back|single) (\d+)")


class Run(Protocol):
    """What an evaluation and a recording have in common."""

    rows: pd.DataFrame

    def per_text(self, column: str = "r") -> pd.DataFrame:
        """One column of the rows as (texts, methods)."""


def curves(run: Run, *, resamples: int = 2000) -> dict[str, pd.DataFrame]:
    """Mean r with LOO of AttnLRP, CP-LRP and every ablation: convention → `stats.estimates`."""
    return {
        convention: stats.estimates(_ablations(run, column), resamples=resamples)
        for convention, column in CONVENTIONS.items()
    }


def published(data: str) -> pd.DataFrame:
    """Table A3's rows of a task, "sst" or "imdb", AttnLRP's and CP-LRP's of Table 2 before them.

    Rows are named as by `lrputils.variants.LayerSweep`; columns `r`, `lerf`, `morf`, `delta`.

    Raises:
        ValueError: no such task.
    """
    printed = paper.table_a3()
    if data not in set(printed.data):
        raise ValueError(f"{data!r} is no task of the paper: choose from {list(set(printed.data))}")
    printed = printed[printed.data == data].rename(columns={"loo_r": "r"})
    printed.index = printed.family + " " + printed.layer.astype(str)
    baselines = paper.table2().loc[data].loc[list(_BASELINES)]
    return pd.concat([baselines, printed[baselines.columns]])


def beside(printed: pd.DataFrame, runs: Mapping[str, Run], layers: int) -> pd.DataFrame:
    """Put the means of several runs beside Table A3: a row an ablation, columns by measure.

    Args:
        printed: of `published`.
        runs: name of its columns → run.
        layers: of the model whose ablations name the rows; see `aligned`.

    Returns:
        Columns `r paper`, `r NAME`, …, `LeRF paper`, …, `MoRF …`, `Δ …`, and last `raw r NAME`. `r`
        is under the paper's convention. A column's means are over one set of texts, those with a
        value in every one of the run's rows; rows without any value do not shrink it. NaN where
        there is no value, or no row that corresponds.
    """
    sources = {"paper": printed.set_axis(["r", "LeRF", "MoRF", "Δ"], axis=1)}
    for name, run in runs.items():
        known = {label: column for label, column in _PRINTED.items() if column in run.rows}
        sources[name] = pd.DataFrame(
            {label: _means(_ablations(run, column)) for label, column in known.items()}
        )
    parts = {name: aligned(table, layers) for name, table in sources.items()}
    names = dict.fromkeys(name for table in parts.values() for name in table.index)
    order = sorted(names, key=lambda name: _order(name))
    columns = {
        f"{label} {name}": table[label]
        for label in _PRINTED
        for name, table in parts.items()
        if label in table
    }
    return pd.DataFrame(columns, index=order)


def _means(wide: pd.DataFrame) -> pd.Series:
    # Curves may be recorded for fewer texts of some methods: equal sets of layers must stay equal.
    complete = wide.dropna(axis=1, how="all").notna().all(axis=1)
    return wide[complete].mean()


def _order(name: str) -> tuple[int, int]:
    found = _ABLATION.fullmatch(name)
    families = ("front", "back", "single")
    return (families.index(found[1]), int(found[2])) if found else (-1, _BASELINES.index(name))


def _ablations(run: Run, column: str) -> pd.DataFrame:
    wide = run.per_text(column)
    return wide[[name for name in wide if name in _BASELINES or _ABLATION.fullmatch(name)]]


def aligned(table: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Return a table of ablations under the names they have in a model of `layers` layers.

    The same name means another intervention in a deeper model: "front 3" is a quarter of twelve
    layers and half of six. A row of `front` or `back` is kept where the other model can bypass the
    same share of its layers, a row of `single` only where both have equally many; whatever is no
    ablation keeps its name.

    Args:
        table: rows named as by `lrputils.variants.LayerSweep`.
        layers: of the model whose names are wanted.
    """
    theirs = layer_count(table.index)
    names = {name: _counterpart(name, theirs, layers) for name in table.index}
    kept = [name for name, other in names.items() if other is not None]
    return table.loc[kept].rename(index=names)


def _counterpart(name: str, theirs: int, ours: int) -> str | None:
    found = _ABLATION.fullmatch(name)
    if found is None or theirs == ours:
        return name
    family, k = found[1], int(found[2])
    bypassed = k if family == "front" else theirs + 1 - k
    if family == "single" or bypassed * ours % theirs:
        return None
    count = bypassed * ours // theirs
    return f"{family} {count if family == 'front' else ours + 1 - count}"


def layer_count(names: Iterable[str]) -> int:
    """How many layers the model has whose ablations are among the names.

    Raises:
        ValueError: there are no ablations among them.
    """
    numbers = [int(found[2]) for name in names if (found := _ABLATION.fullmatch(name))]
    if not numbers:
        raise ValueError("no ablations ('front 1', 'back 1', 'single 1', …) among the methods")
    return max(numbers)


def single_layer_gains(per_text: pd.DataFrame, readout: str = "word") -> pd.DataFrame:
    """What CP-LRP's rule in one layer adds to AttnLRP's agreement with LOO: (texts, layers from 1).

    Args:
        per_text: (texts, methods), with `attnlrp` and `single 1`, `single 2`, … among the methods,
            as an evaluation's or a recording's `per_text`.
        readout: which read-out's maps to compare; away from the word embeddings their names end in
            ` @ read-out`.

    Raises:
        ValueError: the ablations, or AttnLRP, are not among the methods.
    """
    place = "" if readout == "word" else f" @ {readout}"
    names = [f"single {layer}{place}" for layer in range(1, per_text.shape[1] + 1)]
    names = [name for name in names if name in per_text]
    if not names or f"attnlrp{place}" not in per_text:
        raise ValueError(
            f"a gain compares 'attnlrp{place}' with 'single 1{place}', 'single 2{place}', …; "
            f"there are {list(per_text)}"
        )
    gains = per_text[names].sub(per_text[f"attnlrp{place}"], axis=0)
    return gains.set_axis(range(1, len(names) + 1), axis=1)


def late_minus_early(gains: pd.DataFrame) -> stats.Estimate:
    """Mean gain of the middle-to-late half of the layers less that of the early half, by text.

    An odd number of layers has its middle one in the late half. Positive with an interval above
    zero: "middle-to-late layers matter most" holds on these texts.

    Raises:
        ValueError: there is one layer only.
    """
    middle = gains.shape[1] // 2
    if not middle:
        raise ValueError("a single layer has no early half: the gain of layers cannot be compared")
    late, early = (
        half.mean(axis=1, skipna=False) for half in (gains.iloc[:, middle:], gains.iloc[:, :middle])
    )
    return stats.paired_difference(late, early)


def published_late_minus_early(data: str) -> float:
    """`late_minus_early` of the means that Table A3 prints for single layers of a task.

    The paper prints no texts, hence no interval. `data` and errors are those of `published`.
    """
    means = published(data).r
    layers = layer_count(means.index)
    singles = means.loc[[f"single {layer}" for layer in range(1, layers + 1)]]
    return float(singles.iloc[layers // 2 :].mean() - singles.iloc[: layers // 2].mean())
