"""What the paper prints, as data: You, Zeng, Tsai, Yamada and Zhao, BlackboxNLP 2025.

Holds published numbers only, so that every table "paper | this run" takes its left half from here.
It computes nothing. Source: arXiv 2510.18810, text under CC BY 4.0.
"""

from __future__ import annotations

import pandas as pd

SCALAR_POINT = {"x1": 2, "x2": 3, "x3": 4}


def scalar_example() -> pd.DataFrame:
    """Return the relevances of `x1·x2·x3` at (2, 3, 4) as Section 3.1 and Figure 1 print them.

    Rows are (formula, method), columns the factors `x1`, `x2`, `x3`; the values are integers in
    units of the product. The formulas are written out, since "left" and "right" change their
    meaning between the paper's sections.
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
