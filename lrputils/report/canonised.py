"""Canonised LRP beside the others, and which backward pass answers which question, as tables."""

from __future__ import annotations

import pandas as pd

from lrputils import stats
from lrputils.model.readout import READOUTS
from lrputils.report.controls import MASK
from lrputils.report.tables import side_by_side
from lrputils.study import patching, specifications
from lrputils.study.specifications import DEFAULT, RAW, WORDS

# Method, or backward pass → its name in tables and figures.
UNITS = {"canonised-lrp": "canonised, thirds", "canonised-path": "canonised, path"}
NAMES = {
    "grad-x-input": "plain gradient",
    "attnlrp": "AttnLRP",
    "cp-lrp": "CP-LRP",
    **UNITS,
    "attention-gradient": "LRP around plain attention",
}
PLACES = (*READOUTS, "blocks")


def levels(rows: pd.DataFrame, *, tokens: str = WORDS, against: str | None = None) -> pd.DataFrame:
    """Return each method's mean r with LOO by the mask, at the read-outs and at the blocks.

    A row a method of `NAMES`, columns `PLACES`, `side_by_side`; NaN where it was not measured.
    `rows` are those of `lrputils.report.controls.together`; the mask gradient among them is the
    plain gradient read at the blocks. From each text's r that of the method `against` is taken off.
    """
    rows = rows[rows.removal.isin(["", MASK])]
    other = rows.method != "mask-gradient"
    rows = rows.assign(
        method=rows.method.where(other, "grad-x-input"), readout=rows.readout.where(other, "blocks")
    ).drop_duplicates(["id", "method", "readout"])
    found = specifications.agreement(rows, ["Pearson"])
    parts = {}
    for place in PLACES:
        where = (DEFAULT, place, tokens, RAW, MASK, "Pearson")
        base = 0.0 if against is None else found[(against, *where)]
        known = {name: (method, *where) for method, name in NAMES.items()}
        parts[place] = stats.table(
            {
                name: stats.estimate(found[key] - base, method=None if against is None else "t")
                for name, key in known.items()
                if key in found
            }
        ).reindex(list(NAMES.values()))
    return side_by_side(parts)


def patches(rows: pd.DataFrame, against: str | None = None) -> dict[str, pd.DataFrame]:
    """Return how well each backward pass predicts patches: its mean r over texts.

    From rows of `lrputils.study.patching.measure`, less, text by text, the r of the pass `against`:
    pass → columns `value`, `low`, `high`, a row a site and source.
    """
    found, tables = patching.r_with_effects(rows), {}
    for name in patching.PASSES:
        r = {
            f"{site}: {source}": found[source, site, name]
            - (0.0 if against is None else found[source, site, against])
            for source in patching.SOURCES
            for site in patching.SITES
        }
        label = NAMES.get(name, "plain gradient")
        method = None if against is None else "t"
        tables[label] = stats.estimates(pd.DataFrame(r), method=method)
    return tables
