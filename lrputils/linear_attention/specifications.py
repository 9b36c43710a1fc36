"""The same maps under every reading of the paper: which setting, removal and baseline.

`measured` gives rows, `specifications` one table of their means with intervals. The columns of a
row are those of `agreement.compared`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from torch import Tensor

from lrputils.linear_attention.agreement import GRAPHS, PAIRS, compared, estimates
from lrputils.linear_attention.attribution import (
    BASELINES,
    REMOVALS,
    integrated_gradients,
    leave_one_out,
    propagated,
)
from lrputils.linear_attention.model import LEFT, RIGHT, LinearAttention, Setting

ANY = "any"  # the removal of a pair without LOO


def measured(trained: Iterable[LinearAttention], images: Tensor) -> pd.DataFrame:
    """Return r of every pair of maps under every removal, a row per network, image and pair.

    Networks of one setting are its training seeds 0, 1, …; `images` are grey levels from 0 to 1,
    (images, tokens).

    Returns:
        The columns of `compared`; `setting`, `seed`; `removal`, "any" for the two graphs with each
        other; `target`, the predicted class. Beside the pairs of `PAIRS` there are IG from the
        other baselines, and for removal "delete" both graphs read at the rows of Q, K and V ("… @
        token"). Black is left out, as removal and as baseline, where it is 0 (`distinct`).
    """
    seen: dict[str, int] = {}
    parts = []
    for network in trained:
        name = network.setting.name
        seed = seen[name] = seen.get(name, -1) + 1
        target = network(images).argmax(1).numpy()
        rows = _measured(network, images)
        parts.append(rows.assign(setting=name, seed=seed, target=target[rows["id"]]))
    return pd.concat(parts, ignore_index=True)


def _measured(network: LinearAttention, images: Tensor) -> pd.DataFrame:
    scaling = network.setting.scaling
    maps = propagated(network, images)
    at_token = propagated(network, images, readout="token")
    for baseline in BASELINES[1:]:
        if distinct(scaling, baseline) == baseline:
            maps[f"IG from {baseline}"] = integrated_gradients(network, images, baseline=baseline)
    parts = [compared(maps, {GRAPHS: PAIRS[GRAPHS]}).assign(removal=ANY)]
    for removal in dict.fromkeys(distinct(scaling, removal) for removal in REMOVALS):
        if removal == "delete":
            maps |= {f"{graph} @ token": at_token[graph] for graph in (LEFT, RIGHT)}
        loo = {"LOO": leave_one_out(network, images, removal=removal)}
        pairs = {f"{name} vs LOO": (name, "LOO") for name in maps}
        parts.append(compared(maps | loo, pairs).assign(removal=removal))
    return pd.concat(parts, ignore_index=True)


def distinct(scaling: str, removal: str) -> str:
    """Return the removal (or baseline), or "zero" for "black" where grey level 0 is input 0."""
    return "zero" if removal == "black" and scaling == "unit" else removal


def specifications(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean r of every pair under every setting and removal, raw and normalised.

    From rows of `measured`, or recorded ones, in which `r_normalised` follows from `flipped`:
    sum-to-one either keeps r or flips its sign.

    Returns:
        A row per setting, removal and pair: `setting`, `removal`, `pair`; `r` and `r_normalised`
        with their intervals (`r low`, …) over seeds and images; `flipped`, the share of the images
        where exactly one map of the pair flips; `pooled`, mean over the seeds; `seeds`, how many. A
        pair without LOO is under each removal.
    """
    if "r_normalised" not in rows:
        rows = rows.assign(r_normalised=rows["r"].where(~rows["flipped"], -rows["r"]))
    records = []
    for setting, part in rows.groupby("setting", sort=False, observed=True):
        shared = part["removal"] == ANY
        common = _records(part[shared])
        for removal, own in part[~shared].groupby("removal", sort=False, observed=True):
            where = {"setting": setting, "removal": removal}
            records += [where | record for record in common + _records(own)]
    return pd.DataFrame(records)


def _records(rows: pd.DataFrame) -> list[dict]:
    """Return a record per pair: the means of the rows with their intervals."""
    columns = {column: estimates(rows, column) for column in ("r", "r_normalised")}
    records = []
    for pair, part in rows.groupby("pair", sort=False, observed=True):
        record = {"pair": pair}
        for column, found in columns.items():
            value, low, high = found[pair][:3]
            record |= {column: value, f"{column} low": low, f"{column} high": high}
        means = part[["flipped", "pooled"]].mean().to_dict()
        records.append(record | means | {"seeds": part["seed"].nunique()})
    return records


def nearest_first(
    table: pd.DataFrame, published: pd.Series, *, beside: Sequence[str] = ()
) -> pd.DataFrame:
    """Return r after sum-to-one per setting and removal of `specifications`, the nearest first.

    Nearest to the `published` r, by pair, in `largest miss`: the largest absolute difference from
    them. The pairs of `beside` are shown and do not enter. Settings as near as each other, but for
    rounding, stand in the order of their names.
    """
    wide = table.assign(reading=table["setting"] + ", " + table["removal"]).pivot(
        index="reading", columns="pair", values="r_normalised"
    )
    wide = wide.rename_axis(index=None, columns=None)
    miss = (wide[list(published.index)] - published).abs().max(axis=1)
    wide = wide[[*published.index, *beside]].assign(**{"largest miss": miss})
    return wide.sort_values("largest miss", key=lambda miss: miss.round(9), kind="stable")


def of_reading(
    table: pd.DataFrame, setting: Setting, removal: str, column: str = "r"
) -> dict[str, tuple[float, float, float]]:
    """Return (mean, low, high) of each of `PAIRS` under one setting and removal, if there.

    `table` is that of `specifications`; black counts as zero where it is 0.
    """
    same = table["removal"] == distinct(setting.scaling, removal)
    part = table[(table["setting"] == setting.name) & same].set_index("pair")
    ends = [column, f"{column} low", f"{column} high"]
    return {pair: tuple(part.loc[pair, ends].astype(float)) for pair in PAIRS if pair in part.index}
