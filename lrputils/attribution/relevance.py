"""Layer-wise relevance propagation, and the methods that read attention weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Handle
from lrputils.model.attention import Recorder, stepwise
from lrputils.model.operations import laid_out, routed
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    Composite,
    covered,
    installed,
    propagating,
)
from lrputils.propagation.rules import UNITS
from lrputils.removal.mask_gradient import block_scores


def lrp(
    model: Handle,
    inputs: Mapping[str, Any],
    composite: Composite,
    *,
    target: Target,
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


def lrp_at_blocks(
    model: Handle, inputs: Mapping[str, Any], composite: Composite, *, target: Target
) -> Tensor:
    """Relevance `(batch, tokens)` read at the attention blocks, by one forward and backward pass.

        R_i = Σ A_ji / (1 − A_ji) (V_i − O_j)·g_j,   over blocks, heads and queries j ≠ i

    What removing key i takes from the output O_j of each block, weighed by the g_j that the rules
    of `composite` let flow back. With the plain gradient, `GRADIENT`, this is the mask gradient
    (`lrputils.removal.mask_gradient`).
    """
    architecture = covered(model, composite)
    with installed(architecture, composite.rule) as route:
        return block_scores(route, architecture, inputs, target).sum(0)


@method("attnlrp", "AttnLRP", "vermilion")
def _attnlrp(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    readout: str = "word",
    bypass_layers: Iterable[int] = (),
) -> Tensor:
    """AttnLRP (Achtibat et al., 2024): half to each factor of a product, softmax by its Jacobian.

    Args:
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
        bypass_layers: layers, from 0, whose attention gets CP-LRP's rule.
    """
    composite = ATTN_LRP.bypass(bypass_layers)
    return lrp(model, inputs, composite, target=target, readout=readout)


@method("cp-lrp", "CP-LRP", "blue")
def _cp_lrp(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """CP-LRP (Ali et al., 2022): attention weights constant, relevance through the values only.

    Args:
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`.
    """
    return lrp(model, inputs, CP_LRP, target=target, readout=readout)


@method("canonised-lrp", "Canonised LRP", "wine")
def _canonised_lrp(
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
        return lrp_at_blocks(model, inputs, composite, target=target)
    return lrp(model, inputs, composite, target=target, readout=readout)


@method("rollout", "Attention Rollout", "sky", price=lambda *_, **__: 1)
def _rollout(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, variant: str = "paper"
) -> Tensor:
    """Attention Rollout, `(batch, tokens)`: the read-out token's row of A_L · … · A_1.

    A_l is the mean over the heads of layer l. The scores do not depend on the target. Of an answer
    it is the mean row of the tokens that predict it.

    Args:
        variant: "paper" multiplies the A_l as they are; "abnar" is Abnar and Zuidema (2020):
            (A_l + I) / 2, for the residual connection.

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in ("paper", "abnar"):
        raise ValueError(f"unknown variant {variant!r}: 'paper' (no residual) or 'abnar'")
    recorder = Recorder(stepwise)
    with torch.no_grad(), routed(architecture := laid_out(model), recorder) as operations:
        reading = read(architecture, inputs, target=target)
    operations.check_calls()
    row = reading.read.to(reading.value.dtype) / reading.read.sum(1, keepdim=True)
    for weights in reversed(recorder.weights):
        step = torch.einsum("bq,bqk->bk", row, weights.detach().mean(1))
        row = step if variant == "paper" else (step + row) / 2
    return reading.per_token(row)


@method("attention-x-grad", "Attention × gradient", "brown")
def _attention_x_grad(model: Handle, inputs: Mapping[str, Any], *, target: Target) -> Tensor:
    """Attention × gradient, `(batch, tokens)`: R_i = Σ A_ji · ∂f/∂A_ji.

    The sum runs over layers, heads and queries j.
    """
    recorder = Recorder(stepwise)
    with routed(architecture := laid_out(model), recorder) as operations:
        reading = read(architecture, inputs, target=target)
        operations.check_calls()
        gradients = torch.autograd.grad(reading.output.sum(), recorder.weights)
    total = torch.zeros_like(reading.valid, dtype=reading.value.dtype)
    for weights, gradient in zip(recorder.weights, gradients, strict=True):
        total += (weights.detach() * gradient).sum((1, 2))  # type: ignore[union-attr]
    return reading.per_token(total)
