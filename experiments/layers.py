"""Recorded layer ablations as chapter 5 reads them: which layers follow CP-LRP's rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from experiments import frame, paper
from lrputils.report.figures.marks import lines
from lrputils.report.figures.style import Drawing
from lrputils.study.agreement import over_texts

# Family → its layers, and how much of layer k lies above its place.
FAMILIES = {"front": ("layers 1 to k", 0), "back": ("layers k to L", 1), "single": ("layer k", 0.5)}
TASKS = {"SST-2": "sentences", "IMDB": "reviews"}
# What is drawn → the column of our rows, and that of the paper's tables.
MEASURES = {"gain in r": ("r_normalised", "r"), "gain in Δ, %": ("delta", "delta")}
_WHICH = ["model", "family", "layer"]


def name_sets(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep AttnLRP and CP-LRP, and say in a column `part` which set of layers a row is of.

    It is the method's name where all layers follow one rule; "earlier" or "later" where CP-LRP's
    rule holds in that half of the layers; "" for other sets.
    """
    rows = rows[rows.method.isin(["attnlrp", "cp-lrp"])]
    half = rows.groupby("model").layer.transform("max") // 2
    earlier = (rows.family == "front") & (rows.layer == half)
    later = (rows.family == "back") & (rows.layer == half + 1)
    part = np.select([rows.family == "", earlier, later], [rows.method, "earlier", "later"], "")
    return rows.assign(part=part)


def add_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Those rows that have Δ, with the recorded curves that other runs left out."""
    both = pd.concat([rows, frame.read_rows("curves")], ignore_index=True)
    both = both.dropna(subset="delta")
    both["removal"] = both.removal.fillna("attention-mask")
    keys = ["model", "data", "id", "readout", "method", "family", "layer", "removal"]
    return both.drop_duplicates(keys)


def draw_gains(rows: pd.DataFrame, measure: str, models: Sequence[str], title: str) -> Drawing:
    """Draw one measure of the paper's Figure 2: what each set of layers gains over AttnLRP.

    A row of panels is a family of sets, a column a task; the families of one task stand side by
    side. Models differ in the unit of their logits, so what Δ gains is in percent of AttnLRP's Δ.

    Args:
        rows: of `name_sets`, read out at one place, with a column `task`, "SST-2" or "IMDB". What
            has no rows gets no panel.
        measure: a name in `MEASURES`.
        models: which to draw; those without rows of a task are left out of its panels.
        title: of the figure; by default what it draws.
    """
    title = title or f"CP-LRP's rule in these layers: {measure}; dashed: the paper"
    column, published = MEASURES[measure]
    families = {name: how for name, how in FAMILIES.items() if (rows.family == name).any()}
    tasks = {name: texts for name, texts in TASKS.items() if (rows.task == name).any()}
    panels = {}
    for (family, layers), (task, texts) in product(families.items(), tasks.items()):
        ours = _mean_gain(rows[rows.task == task], column, percent=column == "delta")
        printed = paper.ablations(task)[published]
        start = printed["attnlrp", 0]
        gain = 100 * (printed / start - 1) if column == "delta" else printed - start
        panels[texts, f"{measure},\n{layers[0]}"] = _by_depth(family, ours, gain, models)
    how = {"sharex": True, "sharey": "row", "zero": True}
    return lines(panels, xlabel="share of the depth", title=title, **how)


def _mean_gain(rows: pd.DataFrame, column: str, *, percent: bool) -> pd.DataFrame:
    """What a column gains over AttnLRP's, texts paired, by model and set."""
    plain = rows[rows.part == "attnlrp"][["model", "id", column]]
    gains = rows[rows.family != ""].merge(plain, on=["model", "id"], suffixes=("", "_plain"))
    start = gains[f"{column}_plain"]
    gains["gain"] = gains[column] - start
    if percent:
        whole = start.groupby([gains[name] for name in _WHICH]).transform("mean")
        gains["gain"] *= 100 / whole
    return over_texts(gains, _WHICH, "gain", method="t")


def _by_depth(
    family: str, means: pd.DataFrame, printed: pd.Series, models: Sequence[str]
) -> dict[str, pd.DataFrame | pd.Series]:
    """One family's means by model, and the paper's, each set at its share of the depth."""
    ours = means.xs(family, level="family")
    tables = {name: ours.loc[name] for name in models if name in ours.index.unique(0)}
    tables["the paper"] = printed[family]
    below = FAMILIES[family][1]
    return {
        name: table.set_axis((table.index - below) / max(table.index))
        for name, table in tables.items()
    }
