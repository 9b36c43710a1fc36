"""The layer ablations as tables: their means beside the paper's, and which half of layers leads.

Takes what was measured, from an evaluation or a recording, and measures nothing. Rows are indexed
by family and layer; AttnLRP and CP-LRP stand before them, under their names and layer 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lrputils import paper, stats
from lrputils.study.by_text import Run
from lrputils.study.variants import ABLATIONS

RAW, SUM_TO_ONE = "raw r", "maps divided by their sums"
# convention → column of an evaluation's rows
COLUMNS = {RAW: "r", SUM_TO_ONE: "r_normalised"}
_CONTENT = "without special tokens"
# What Table A3 prints, and raw r behind it → column of an evaluation's rows
_PRINTED = {"r": "r_normalised", "LeRF": "lerf", "MoRF": "morf", "Δ": "delta", RAW: "r"}
_BASELINES = ("attnlrp", "cp-lrp")
_ORDER = (*_BASELINES, *ABLATIONS)


def curves(run: Run) -> dict[str, pd.DataFrame]:
    """Mean r with LOO of AttnLRP, CP-LRP and every ablation: convention → `stats.estimates`."""
    return {
        convention: stats.estimates(_ablations(run, column))
        for convention, column in COLUMNS.items()
    }


def beside(printed: pd.DataFrame, runs: Mapping[str, Run], layers: int) -> pd.DataFrame:
    """Put the means of several runs beside Table A3: a row an ablation, columns by measure.

    Rows are the ablations of a model of `layers` layers (see `aligned`). Columns are `r paper`, `r
    NAME`, …, `LeRF paper`, …, `MoRF …`, `Δ …`, and last `raw r NAME`; `r` is under the paper's
    convention. A column's means are over one set of texts, those with a value in every one of the
    run's rows; rows without any value do not shrink it. NaN where there is no value, or no row.
    """
    sources = {"paper": printed.set_axis(["r", "LeRF", "MoRF", "Δ"], axis=1)}
    for name, run in runs.items():
        known = {label: column for label, column in _PRINTED.items() if column in run.rows}
        means = {label: _means(_ablations(run, column)) for label, column in known.items()}
        sources[name] = pd.DataFrame(means)
    parts = {name: aligned(table, layers) for name, table in sources.items()}
    rows = {row for table in parts.values() for row in table.index}
    order = sorted(rows, key=lambda row: (_ORDER.index(row[0]), row[1]))
    columns = {
        f"{label} {name}": table[label]
        for label in _PRINTED
        for name, table in parts.items()
        if label in table
    }
    return named(pd.DataFrame(columns, index=pd.MultiIndex.from_tuples(order)))


def _means(wide: pd.DataFrame) -> pd.Series:
    # Curves may be recorded for fewer texts of some methods: equal sets of layers must stay equal.
    complete = wide.dropna(axis=1, how="all").notna().all(axis=1)
    return wide[complete].mean()


def _ablations(run: Run, column: str) -> pd.DataFrame:
    ablations, wide = run.ablations(column), run.per_text(column)
    wide = wide[[method for method in _BASELINES if method in wide]]
    wide.columns = pd.MultiIndex.from_product([wide.columns, [0]], names=ablations.columns.names)
    return pd.concat([wide, ablations], axis=1)


def aligned(table: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Return a table of ablations under the layers they have in a model of `layers` layers.

    The same layer means another intervention in a deeper model: "front 3" is a quarter of twelve
    layers and half of six. A row of `front` or `back` is kept where the other model can bypass the
    same share of its layers, a row of `single` only where both have equally many.
    """
    theirs = layer_count(table)
    rows = {row: _counterpart(*row, theirs, layers) for row in table.index}
    kept = table.loc[[row for row, other in rows.items() if other]]
    return kept.set_axis(pd.MultiIndex.from_tuples(filter(None, rows.values())), axis=0)


def _counterpart(family: str, k: int, theirs: int, ours: int) -> tuple[str, int] | None:
    if not k or theirs == ours:
        return family, k
    bypassed = k if family == "front" else theirs + 1 - k
    if family == "single" or bypassed * ours % theirs:
        return None
    count = bypassed * ours // theirs
    return family, count if family == "front" else ours + 1 - count


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Write family and layer of each row as one name, to be shown: "attnlrp", "front 1", …."""
    return table.set_axis([f"{family} {k}" if k else family for family, k in table.index], axis=0)


def layer_count(table: pd.DataFrame | pd.Series) -> int:
    """How many layers the model has whose ablations are the rows; ValueError without ablations."""
    numbers = [k for _, k in table.index if k]
    if not numbers:
        raise ValueError(f"no ablations ('front', 1), … among the rows {list(table.index)}")
    return max(numbers)


def single_layer_gains(run: Run, column: str = "r", readout: str = "word") -> pd.DataFrame:
    """What CP-LRP's rule in one layer adds to AttnLRP's r with LOO: (texts, layers from 1)."""
    single = run.ablations(column, readout)["single"]
    return single.sub(run.per_text(column, ["attnlrp"], readout)["attnlrp"], axis=0)


def late_minus_early(gains: pd.DataFrame) -> stats.Estimate:
    """Mean gain of the middle-to-late half of the layers less that of the early half, by text.

    An odd number of layers has its middle one in the late half; ValueError for a single layer.
    Positive with an interval above zero: "middle-to-late layers matter most" holds on these texts.
    """
    middle = gains.shape[1] // 2
    if not middle:
        raise ValueError("a single layer has no early half: the gain of layers cannot be compared")
    halves = gains.iloc[:, middle:], gains.iloc[:, :middle]  # late, early
    return stats.paired_difference(*(half.mean(axis=1, skipna=False) for half in halves))


def halves(run: Run) -> dict[str, pd.DataFrame]:
    """Do the later layers matter more? Two paired tests, positive where they do.

    "back − front": r with CP-LRP's rule in the later half of the layers less r with it in the
    earlier half. "late − early": `late_minus_early`. Test → `stats.table`, a row a (read-out,
    convention) of the run, raw r without special tokens among the conventions.
    """
    back, late = {}, {}
    for at in run.rows[run.rows.family == "single"].readout.unique():
        for convention, column in {**COLUMNS, _CONTENT: "r_content"}.items():
            both = _back_and_front(run.ablations(column, at))
            back[at, convention] = stats.paired_difference(*both)
            late[at, convention] = late_minus_early(single_layer_gains(run, column, at))
    return {"back − front": stats.table(back), "late − early": stats.table(late)}


def _back_and_front(ablations: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    middle = ablations["single"].shape[1] // 2
    if not middle:
        raise ValueError("a single layer has no early half: the gain of layers cannot be compared")
    return ablations["back", middle + 1], ablations["front", middle]


def published_late_minus_early(data: str) -> float:
    """`late_minus_early` of the means that Table A3 prints for single layers of a task.

    The paper prints no texts, hence no interval. `data` and errors: see `lrputils.paper.ablations`.
    """
    return late_minus_early(paper.ablations(data).r[["single"]].to_frame().T).value


def published_halves(data: str) -> dict[str, float]:
    """The tests of `halves` on the means of Table A3, sum to one as the paper has it."""
    back, front = _back_and_front(paper.ablations(data).r.to_frame().T)
    return {
        "back − front": float((back - front).iloc[0]),
        "late − early": published_late_minus_early(data),
    }
