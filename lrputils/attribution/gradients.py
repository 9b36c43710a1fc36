"""Gradient methods on the plain model: gradient × input, Integrated Gradients, SmoothGrad."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.inputs import special_tokens
from lrputils.model.readout import GRADIENT_TOKENS, Reading, Target, read


@method("grad-x-input", "Gradient × input", "purple", rules=False)
def _grad_x_input(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """Gradient × input: R_i = x_i · ∂f/∂x_i at the read-out tensor, `(batch, tokens)`.

    Args:
        readout: where the gradient is taken: "word", "sum" or "post-norm", see `READOUTS`.
    """
    reading = read(describe(model, rules=False), inputs, target=target, readout=readout)
    return reading.relevance(reading.gradient())


@method("ig", "Integrated Gradients", "orange", rules=False)
def _integrated_gradients(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    baseline: str | int = "pad",
    steps: int = 32,
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """Integrated Gradients (Sundararajan et al., 2017) at the word embeddings, `(batch, tokens)`.

        R_i = (x_i − b_i) · ∫₀¹ ∂f/∂x_i (b + α (x − b)) dα,   by the midpoint rule

    The path goes in the space of word embeddings; positions stay as they are, and so do special
    tokens, which are their own baseline. Scores sum to f(x) − f(b), but for the quadrature's error.

    Args:
        baseline: "zero", "pad", "mask" or a token id: what a token's embedding comes from.
        steps: points of the quadrature.
        batch_tokens: how many tokens go through the model at once; bounds the memory.

    Raises:
        ValueError: an unknown baseline, or a baseline token that is not known.
    """
    architecture = describe(model, rules=False)
    _at_least_one("steps", steps)
    reading = read(architecture, inputs, target=target)
    start = _baseline(architecture, inputs, reading, baseline)
    difference = reading.value - start

    def _along_path(rows: Tensor, draws: Tensor) -> Tensor:
        alpha = ((draws.double() + 0.5) / steps).to(start)
        return start[rows] + alpha[:, None, None] * difference[rows]

    mean = _mean_gradient(architecture, inputs, reading, _along_path, steps, batch_tokens)
    return reading.per_token((difference * mean).sum(-1))


@method("smoothgrad", "SmoothGrad × input", rules=False)
def _smoothgrad(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    samples: int = 16,
    noise: float = 0.1,
    seed: int = 0,
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """SmoothGrad (Smilkov et al., 2017) × input at the word embeddings, `(batch, tokens)`.

        R_i = x_i · 1/n Σ_k ∂f/∂x_i (x + noise_k),   noise_k ~ N(0, σ²)

    σ is `noise` times the range of the text's embedding values. The noise of a token depends on the
    seed and on its position alone, so that a text gets the same scores in any batch.

    Args:
        samples: noisy copies of each text.
        noise: standard deviation, as a share of the embeddings' range.
        seed: of the noise.
        batch_tokens: how many tokens go through the model at once; bounds the memory.
    """
    architecture = describe(model, rules=False)
    reading = read(architecture, inputs, target=target)
    _at_least_one("samples", samples)
    generator = torch.Generator().manual_seed(seed)  # on the CPU, position by position
    _, tokens, size = reading.value.shape
    bank = [torch.randn(samples, size, generator=generator) for _ in range(tokens)]
    bank = torch.stack(bank, dim=1).to(reading.value)
    inside = reading.valid[..., None]
    top = reading.value.masked_fill(~inside, -torch.inf).amax((1, 2), keepdim=True)
    low = reading.value.masked_fill(~inside, torch.inf).amin((1, 2), keepdim=True)
    spread = (top - low) * noise

    def _around(rows: Tensor, draws: Tensor) -> Tensor:
        place = (reading.valid.long().cumsum(1) - 1).clamp(min=0)[rows]
        return reading.value[rows] + spread[rows] * bank[draws[:, None], place]

    mean = _mean_gradient(architecture, inputs, reading, _around, samples, batch_tokens)
    return reading.relevance(mean)


def _mean_gradient(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    reading: Reading,
    embeddings: Callable[[Tensor, Tensor], Tensor],
    draws: int,
    batch_tokens: int,
) -> Tensor:
    """Mean of the gradients at `embeddings(rows, draws)` over the draws, in bounded batches."""
    _at_least_one("batch_tokens", batch_tokens)
    batch, tokens = reading.valid.shape
    arguments = architecture.arguments(inputs)
    device = reading.valid.device
    total = torch.zeros_like(reading.value)
    pairs = torch.cartesian_prod(torch.arange(draws), torch.arange(batch)).to(device)
    for chunk in pairs.split(max(1, batch_tokens // tokens)):
        draw, rows = chunk[:, 0], chunk[:, 1]
        some = {k: v[rows] for k, v in arguments.items() if isinstance(v, Tensor)}
        values = embeddings(rows, draw)
        point = read(
            architecture, some, target=reading.target[rows], change=lambda _, to=values: to
        )
        total.index_add_(0, rows, point.gradient() / draws)
    return total


def _baseline(
    architecture: Architecture, inputs: Mapping[str, Any], reading: Reading, baseline: str | int
) -> Tensor:
    """Word embeddings `(batch, tokens, size)` at the start of the path: special tokens stay."""
    if architecture.vision:
        kept = reading.head  # [CLS]
    else:
        kept = special_tokens(inputs).to(reading.valid.device) | ~reading.valid
    if baseline == "zero":
        embedding = torch.zeros_like(reading.value)
    elif architecture.vision:
        raise ValueError(f"baseline {baseline!r} is a token's; for images there is 'zero'")
    else:
        token = _baseline_token(architecture, inputs, baseline)
        ids = torch.full(reading.valid.shape, token, device=reading.valid.device)
        with torch.no_grad():
            embedding = architecture.word_embeddings(ids)
    return torch.where(kept[..., None], reading.value, embedding)


def _baseline_token(
    architecture: Architecture, inputs: Mapping[str, Any], baseline: str | int
) -> int:
    if isinstance(baseline, int):
        known = architecture.config.vocab_size
        if not 0 <= baseline < known:
            raise ValueError(f"baseline={baseline} is no token id: they are 0 to {known - 1}")
        return baseline
    if baseline not in ("pad", "mask"):
        raise ValueError(
            f"unknown baseline {baseline!r}: there are 'zero', 'pad', 'mask', and any token id"
        )
    name = f"{baseline}_token_id"
    token = getattr(inputs, "replacements", {}).get(baseline)
    token = getattr(architecture.config, name, None) if token is None else token
    if token is None:
        raise ValueError(
            f"baseline {baseline!r}: neither the inputs nor the model's config name a {name}. "
            f"Pass the id itself, as baseline=tokenizer.{name}, or baseline='zero'"
        )
    return token


def _at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on; got {value!r}")
