"""The same maps under every reading of the paper: which setting, removal and baseline."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from torch import Tensor

from lrputils.linear_attention.agreement import GRAPHS, PAIRS, compared
from lrputils.linear_attention.attribution import (
    BASELINES,
    REMOVALS,
    integrated_gradients,
    leave_one_out,
    propagated,
)
from lrputils.linear_attention.model import LEFT, RIGHT, LinearAttention

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
