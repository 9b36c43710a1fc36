"""Layer-wise relevance propagation: a composite, a backward pass, and the read-out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.handles import Handle
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, Composite, propagating


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
        composite: the rules.
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
    """
    with propagating(model, composite) as architecture:
        reading = read(architecture, inputs, target=target, readout=readout)
        return reading.relevance(reading.gradient())


def lrp_everywhere(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, composite: Composite
) -> dict[str, Tensor]:
    """`lrp` at every read-out that the model has, by one forward and backward pass."""
    with propagating(model, composite) as architecture:
        return read(architecture, inputs, target=target).everywhere()


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
