"""The paper's printed numbers, as data: You, Zeng, Tsai, Yamada and Zhao, BlackboxNLP 2025.

The left half of every table "paper | this run". Source: arXiv 2510.18810, text under CC BY 4.0.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

SCALAR_POINT = {"x1": 2, "x2": 3, "x3": 4}


def scalar_example() -> pd.DataFrame:
    """Return the relevances of `x1·x2·x3` at (2, 3, 4) as Section 3.1 and Figure 1 print them.

    Rows are (formula, method), columns the factors `x1`, `x2`, `x3`; the values are integers in
    units of the product. The formulas are written out, since "left" and "right" change
    their meaning between the paper's sections.
    """
    printed = {
        ("(x1 * x2) * x3", "AttnLRP"): (6, 6, 12),
        ("x1 * (x2 * x3)", "AttnLRP"): (12, 6, 6),
        ("(x1 * x2) * x3", "LOO"): (24, 24, 24),
        ("x1 * (x2 * x3)", "LOO"): (24, 24, 24),
    }
    frame = pd.DataFrame.from_dict(printed, orient="index", columns=list(SCALAR_POINT))
    frame.index = pd.MultiIndex.from_tuples(frame.index, names=["formula", "method"])
    return frame


METHODS = {
    "loo": "LOO",
    "ig": "IG",
    "rollout": "AttentionRollout",
    "attnlrp": "AttnLRP",
    "cp-lrp": "CP-LRP",
}


def table2() -> pd.DataFrame:
    """Return Table 2: how the methods compare with LOO on SST and IMDB.

    Rows are (data, method) with this package's method names; columns `r` (mean Pearson
    correlation with LOO after normalising every map to sum one), `lerf`, `morf` and `delta`
    (logits). The paper gives no intervals and no number of examples.
    """
    file = Path(__file__).parent / "assets/paper/table_2.csv"
    return pd.read_csv(file, index_col=["data", "method"])


def ablations(data: str) -> pd.DataFrame:
    """Return a task's rows of Table A3, with AttnLRP's and CP-LRP's of Table 2 before them.

    The task is "sst" or "imdb". Rows by `family` (front: layers 1..layer bypassed, back: layers
    layer..12, single: that layer alone; "attnlrp" and "cp-lrp" with layer 0) and `layer` (counted
    from 1), columns `r`, `lerf`, `morf`, `delta`. Table A3 is the ablation behind Figure 2.
    """
    printed = pd.read_csv(Path(__file__).parent / "assets/paper/table_a3.csv", index_col="data")
    printed = printed.loc[data].rename(columns={"loo_r": "r"})
    printed = printed.sort_values(["family", "layer"]).set_index(["family", "layer"])
    before = table2().loc[data].loc[["attnlrp", "cp-lrp"]]
    before.index = pd.MultiIndex.from_product([before.index, [0]], names=printed.index.names)
    return pd.concat([before, printed])


def table1() -> pd.DataFrame:
    """Return Table 1, mean Pearson's r on MNIST linear attention, a row per printed number.

    Columns: `explainer` (LOO, IG, AttnLRP), `printed` (the table's own heading), `pair` (the two
    maps compared, by formula) and `r`. LOO and IG do not depend on the factorization. Section 4.3,
    which describes this experiment, calls (QKᵀ)V "right" and Q(KᵀV) "left", against Section 3.1.
    """
    return pd.read_csv(Path(__file__).parent / "assets/paper/table_1.csv")
