"""Layer-wise relevance propagation: a composite, a backward pass, and the read-out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Handle, describe
from lrputils.model.attention import Recorder
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    Composite,
    check_composite,
    installed,
    propagating,
)
from lrputils.propagation.rules import UNITS
from lrputils.removal.mask_gradient import block_scores


def lrp(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    composite: Composite,
    readout: str = "word",
) -> Tensor:
    """Relevance `(batch, tokens)` under the rules of `composite`, by one forward and backward pass.

    R_i = x_i · g_i, summed over the read-out tensor's entries, where g is what the rules let flow
    back from the explained logit.

    Args:
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
    """
    with propagating(model, composite) as architecture:
        reading = read(architecture, inputs, target=target, readout=readout)
        return reading.relevance(reading.gradient())


def lrp_everywhere(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    composite: Composite,
    blocks: bool = False,
) -> dict[str, Tensor]:
    """`lrp` at every read-out that the model has, by one forward and backward pass.

    With `blocks` also at the attention blocks, as "blocks":

        R_i = Σ A_ji / (1 − A_ji) (V_i − O_j)·g_j,   over blocks, heads and queries j ≠ i

    What removing key i takes from the output O_j of each block, weighed by the g_j that the rules
    of `composite` let flow back. With the plain gradient, `GRADIENT`, this is the mask gradient
    (`lrputils.removal.mask_gradient`).
    """
    check_composite(composite, architecture := describe(model))
    seen = Recorder()
    with installed(architecture, composite.rule, recorder=seen if blocks else None):
        reading = read(architecture, inputs, target=target)
    found, arriving = reading.everywhere(*seen.outputs)
    if blocks:
        pairs = zip(seen.calls, arriving, strict=True)
        with torch.no_grad():
            effects = sum(block_scores(*pair, reading.head) for pair in pairs)
        found["blocks"] = reading.per_token(effects)
    return found


@method("attnlrp", "AttnLRP", "vermilion")
def attnlrp(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    readout: str = "word",
    bypass_layers: Iterable[int] = (),
) -> Tensor:
    """AttnLRP (Achtibat et al., 2024), with CP-LRP's rule for the attention of some layers.

    Args:
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
        bypass_layers: layers, from 0, whose attention gets CP-LRP's rule.
    """
    composite = ATTN_LRP.bypass(bypass_layers)
    return lrp(model, inputs, target=target, composite=composite, readout=readout)


@method("cp-lrp", "CP-LRP", "blue")
def cp_lrp(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """CP-LRP (Ali et al., 2022): attention weights constant, relevance through the values only.

    Args:
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
    """
    return lrp(model, inputs, target=target, composite=CP_LRP, readout=readout)


@method("canonised-lrp", "Canonised LRP", "sky")
def canonised_lrp(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    unit: str = "thirds",
    readout: str = "word",
) -> Tensor:
    """AttnLRP with each attention block as one unit, so that its inner order does not matter.

    Args:
        unit: what a block's Q, K and V get: "thirds" of its gradient, or its mean gradient on the
            "path" from zero, which conserves relevance.
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`; or "blocks",
            what removing the token's key from each block takes from the relevance there.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r} is not one of {tuple(UNITS)}")
    composite = ATTN_LRP.but(attention=unit)
    if readout == "blocks":
        how = {"target": target, "composite": composite, "blocks": True}
        return lrp_everywhere(model, inputs, **how)["blocks"]
    return lrp(model, inputs, target=target, composite=composite, readout=readout)
