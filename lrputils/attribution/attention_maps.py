"""Methods that read the attention weights: Attention Rollout and attention × gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lrputils.architectures import Architecture
from lrputils.attention import combine, routed, weights_of
from lrputils.readout import Reading, Target, read


class _Recorder:
    """An attention function that keeps each layer's weights `(batch, heads, queries, keys)`."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def __call__(
        self,
        layer: int | None,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
    ) -> tuple[Tensor, Tensor]:
        weights = weights_of(query, key, mask, scaling)
        self.weights.append(weights)
        return combine(weights, value), weights


def rollout(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    *,
    variant: str = "paper",
) -> Tensor:
    """Attention Rollout, `(batch, tokens)`: the read-out token's row of A_L · … · A_1.

    A_l is the mean over the heads of layer l. `variant="paper"` multiplies the A_l as they are;
    `"abnar"` is Abnar and Zuidema (2020): (A_l + I) / 2, for the residual connection. The scores
    do not depend on the target.

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in ("paper", "abnar"):
        raise ValueError(f"unknown variant {variant!r}: 'paper' (no residual) or 'abnar'")
    recorder = _Recorder()
    with torch.no_grad(), routed(architecture.model, recorder, architecture):
        reading = read(architecture, inputs, target=target)
    row = _readout_row(architecture, reading)
    for weights in reversed(recorder.weights):
        step = torch.einsum("bq,bqk->bk", row, weights.detach().mean(1))
        row = step if variant == "paper" else (step + row) / 2
    return reading.per_token(row)


def attention_x_grad(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    *,
    rectify: bool = False,
) -> Tensor:
    """Attention × gradient, `(batch, tokens)`: R_i = Σ A_ji · ∂f/∂A_ji.

    The sum runs over layers, heads and queries j.
    With `rectify`, negative products count as 0, as in Barkan et al. (2021).
    """
    recorder = _Recorder()
    with routed(architecture.model, recorder, architecture):
        reading = read(architecture, inputs, target=target)
        gradients = torch.autograd.grad(reading.output.sum(), recorder.weights)
    total = torch.zeros_like(reading.valid, dtype=reading.value.dtype)
    for weights, gradient in zip(recorder.weights, gradients, strict=True):
        product = weights.detach() * gradient
        total += (product.relu() if rectify else product).sum((1, 2))
    return reading.per_token(total)


def _readout_row(architecture: Architecture, reading: Reading) -> Tensor:
    """1 at the token whose final state the head reads, `(batch, tokens)`."""
    row = torch.zeros_like(reading.valid, dtype=reading.value.dtype)
    if architecture.readout_position == "first":
        place = torch.zeros(len(row), dtype=torch.long, device=row.device)
    else:
        places = torch.arange(1, row.shape[1] + 1, device=row.device)
        place = (reading.valid * places).argmax(1)
    return row.scatter_(1, place[:, None], 1.0)
