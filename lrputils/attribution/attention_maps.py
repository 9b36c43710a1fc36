"""Methods that read the attention weights: Attention Rollout and attention × gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Handle, describe
from lrputils.model.attention import Recorder, routed, stepwise
from lrputils.model.readout import Target, read


@method("rollout", "Attention Rollout", "sky")
def rollout(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, variant: str = "paper"
) -> Tensor:
    """Attention Rollout, `(batch, tokens)`: the read-out token's row of A_L · … · A_1.

    A_l is the mean over the heads of layer l. The scores do not depend on the target.

    Args:
        variant: "paper" multiplies the A_l as they are; "abnar" is Abnar and Zuidema (2020):
            (A_l + I) / 2, for the residual connection.

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in ("paper", "abnar"):
        raise ValueError(f"unknown variant {variant!r}: 'paper' (no residual) or 'abnar'")
    recorder = Recorder(stepwise)
    with torch.no_grad(), routed(architecture := describe(model), recorder):
        reading = read(architecture, inputs, target=target)
    row = reading.head.to(reading.value.dtype)
    for weights in reversed(recorder.weights):
        step = torch.einsum("bq,bqk->bk", row, weights.detach().mean(1))
        row = step if variant == "paper" else (step + row) / 2
    return reading.per_token(row)


@method("attention-x-grad", "Attention × gradient")
def attention_x_grad(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, rectify: bool = False
) -> Tensor:
    """Attention × gradient, `(batch, tokens)`: R_i = Σ A_ji · ∂f/∂A_ji.

    The sum runs over layers, heads and queries j.

    Args:
        rectify: count negative products as 0, as in Barkan et al. (2021).
    """
    recorder = Recorder(stepwise)
    with routed(architecture := describe(model), recorder):
        reading = read(architecture, inputs, target=target)
        gradients = torch.autograd.grad(reading.output.sum(), recorder.weights)
    total = torch.zeros_like(reading.valid, dtype=reading.value.dtype)
    for weights, gradient in zip(recorder.weights, gradients, strict=True):
        product = weights.detach() * gradient
        total += (product.relu() if rectify else product).sum((1, 2))
    return reading.per_token(total)
