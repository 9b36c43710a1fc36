"""The paper's printed numbers, as data: You, Zeng, Tsai, Yamada and Zhao, BlackboxNLP 2025.

The left half of every table "paper | this run". Source: arXiv 2510.18810, text under CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

METHODS = {
    "loo": "LOO",
    "ig": "IG",
    "rollout": "AttentionRollout",
    "attnlrp": "AttnLRP",
    "cp-lrp": "CP-LRP",
}
_FOLDER = Path(__file__).parent / "assets/paper"
_INDEX = {"figure_1": ["formula", "method"], "table_2": ["data", "method"], "table_a3": "data"}
_TASKS = {"SST-2": "sst", "IMDB": "imdb"}  # ours → the tables'


def printed(name: str) -> pd.DataFrame:
    """Return printed numbers by where they stand; the paper has no intervals for them.

    "figure_1": relevances of `x1·x2·x3` at (2, 3, 4), as in Section 3.1, too. Rows are (formula,
    method), columns the factors `x1`, `x2`, `x3`; integers in units of the product. The formulas
    are written out, since "left" and "right" change their meaning between the paper's sections.

    "table_1": mean Pearson's r on MNIST linear attention, a row per printed number. Columns are
    `explainer` (LOO, IG, AttnLRP), `printed` (the table's own heading), `pair` (the two maps
    compared, by formula) and `r`. LOO and IG do not depend on the factorization. Section 4.3,
    which describes this experiment, calls (QKᵀ)V "right" and Q(KᵀV) "left", against Section 3.1.

    "table_2": how the methods compare with LOO on SST and IMDB. Rows are (data, method) with this
    package's method names; columns `r` (mean Pearson correlation with LOO after normalising every
    map to sum one), `lerf`, `morf` and `delta` (logits).
    """
    return pd.read_csv(_FOLDER / f"{name}.csv", index_col=_INDEX.get(name))


def ablations(data: str) -> pd.DataFrame:
    """Return a task's rows of Table A3, with AttnLRP's and CP-LRP's of Table 2 before them.

    The task is "SST-2" or "IMDB". Rows by `family` (front: layers 1..layer bypassed, back: layers
    layer..12, single: that layer alone; "attnlrp" and "cp-lrp" with layer 0) and `layer` (counted
    from 1), columns `r`, `lerf`, `morf`, `delta`. Table A3 is the ablation behind Figure 2.
    """
    task = _TASKS[data]
    rows = printed("table_a3").loc[task].rename(columns={"loo_r": "r"})
    rows = rows.sort_values(["family", "layer"]).set_index(["family", "layer"])
    before = printed("table_2").loc[task].loc[["attnlrp", "cp-lrp"]]
    before.index = pd.MultiIndex.from_product([before.index, [0]], names=rows.index.names)
    return pd.concat([before, rows])
