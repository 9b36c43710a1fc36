"""Layer-wise relevance propagation: a composite, a backward pass, and the read-out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from lrputils.architectures import Architecture
from lrputils.propagation import ATTN_LRP, CP_LRP, Composite, propagating
from lrputils.readout import Target, read


def lrp(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    *,
    composite: Composite,
    readout: str = "word",
) -> Tensor:
    """Relevance `(batch, tokens)` under the rules of `composite`, by one forward and backward pass.

    R_i = x_i · g_i, summed over the read-out tensor's entries, where g is what the rules let flow
    back from the explained logit.
    """
    with propagating(architecture.model, composite, architecture):
        reading = read(architecture, inputs, target=target, readout=readout)
        return reading.relevance(reading.gradient())


def attnlrp(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    *,
    readout: str = "word",
    bypass_layers: Iterable[int] = (),
) -> Tensor:
    """AttnLRP (Achtibat et al., 2024), with CP-LRP's rule for the attention of `bypass_layers`."""
    composite = ATTN_LRP.bypass(bypass_layers)
    return lrp(architecture, inputs, target, composite=composite, readout=readout)


def cp_lrp(
    architecture: Architecture, inputs: Mapping[str, Any], target: Target, *, readout: str = "word"
) -> Tensor:
    """CP-LRP (Ali et al., 2022): attention weights constant, relevance through the values only."""
    return lrp(architecture, inputs, target, composite=CP_LRP, readout=readout)
