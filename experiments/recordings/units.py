"""Agreement with leave-one-out by tokens, words and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.by_text import in_batches
from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.units import UNITS
from lrputils.removal.leave_one_out import leave_one_out

_READ_AT = {
    "attnlrp": ("word", "sum"),
    "cp-lrp": ("word", "sum"),
    "grad-x-input": ("",),
    "ig": ("",),
    "mask-gradient": ("",),
}


@in_batches("id", "label", "target")
def units(
    classifier: Classifier, inputs: Inputs, target: Tensor, *, kinds: Sequence[str] = UNITS[:3]
) -> Iterator[dict[str, Any]]:
    """Return a row a text, kind of units, method and read-out; sentences alone need few passes.

    A unit's LOO removes all of its tokens at once; of other maps its tokens' scores are added up.
    The method "loo of tokens" is that sum for LOO itself: what is lost where tokens go one at a
    time.

    Returns:
        `id`, `label`, `target`, `units`, `method`, `readout`, `count` (of its units); `r` and
        `spearman` with LOO over the units; `several`, how many units have more than one token,
        and `flipped`, in how many of these the map's sign is not LOO's.
    """
    maps = {}
    if "token" in kinds:
        maps["loo of tokens", ""] = leave_one_out(classifier, inputs, target=target, progress=False)
    for method, places in _READ_AT.items():
        for place in places:
            options = {"readout": place} if place else {}
            maps[method, place] = attribute(classifier, inputs, method, target=target, **options)
    for units in kinds:
        over = inputs.units(units)
        loo = leave_one_out(classifier, inputs, target=target, units=units, progress=False)
        tokens = over.sum(torch.ones_like(loo))
        where = over.mask
        for (method, place), scores in maps.items():
            scores = over.sum(scores.to(loo))
            other = where & (tokens > 1) & (scores.sign() != loo.sign())
            yield {
                "units": units,
                "method": method,
                "readout": place,
                "count": where.sum(1),
                "r": stats.pearson(scores, loo, where=where),
                "spearman": stats.spearman(scores, loo, where=where),
                "several": (where & (tokens > 1)).sum(1),
                "flipped": other.sum(1),
            }
