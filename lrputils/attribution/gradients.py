"""Gradient methods on the plain model: gradient × input, Integrated Gradients, SmoothGrad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.inputs import special_tokens
from lrputils.model.readout import GRADIENT_TOKENS, Reading, Target, read


@method("grad-x-input", "Gradient × input", "purple", rules=False)
def grad_x_input(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """Gradient × input: R_i = x_i · ∂f/∂x_i at the read-out tensor, `(batch, tokens)`.

    Args:
        readout: where the gradient is taken: "word", "sum" or "post-norm", see `READOUTS`.
    """
    reading = read(describe(model, rules=False), inputs, target=target, readout=readout)
    return reading.relevance(reading.gradient())


class IntegratedGradients(NamedTuple):
    """Integrated Gradients of a batch, and their completeness gap.

    `scores`, `(batch, tokens)`, are 0 at padding and at special tokens, which the baseline keeps;
    `change`, `(batch,)`, is f(x) − f(baseline), what complete scores sum to; `gap`, Σ scores −
    change, is the error of the quadrature.
    """

    scores: Tensor
    change: Tensor
    gap: Tensor


@torch.inference_mode(False)
def integrated_gradients(
    model: Handle,
    inputs: Mapping[str, Any],
    target: Target = None,
    *,
    baseline: str | int = "pad",
    steps: int = 32,
    quadrature: str = "midpoint",
    tolerance: float | None = None,
    batch_tokens: int = GRADIENT_TOKENS,
) -> IntegratedGradients:
    """Integrated Gradients (Sundararajan et al., 2017) at the word embeddings.

        R_i = (x_i − b_i) · ∫₀¹ ∂f/∂x_i (b + α (x − b)) dα

    The path goes in the space of word embeddings; positions stay as they are, and so do special
    tokens, which are their own baseline.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: encoded texts with their `special_tokens_mask`, or pixel values.
        target: the class to explain; None is the class predicted on the whole input.
        baseline: "zero", "pad", "mask" or a token id: what a token's embedding comes from.
        steps: points of the quadrature.
        quadrature: "midpoint", "right" (the sum of the original paper) or "gauss-legendre", the
            most accurate on most texts, but poor on the few whose path is steep somewhere.
        tolerance: the largest completeness gap that is not an error; None allows any finite one.
        batch_tokens: how many tokens go through the model at once; bounds the memory.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown baseline or quadrature, a baseline token that is not known, or a gap
            beyond the tolerance.
    """
    architecture = describe(model, rules=False)
    points, weights = _quadrature(quadrature, steps)
    reading = read(architecture, inputs, target=target)
    start = _baseline(architecture, inputs, reading, baseline)
    difference = reading.value - start

    def along_path(rows: Tensor, draws: Tensor) -> Tensor:
        alpha = points.to(start)[draws][:, None, None]
        return start[rows] + alpha * difference[rows]

    total = torch.zeros_like(difference)
    for rows, draws, gradient in _gradients(
        architecture, inputs, reading, along_path, len(points), batch_tokens
    ):
        total.index_add_(0, rows, weights.to(total)[draws][:, None, None] * gradient)
    with torch.no_grad():
        empty = read(architecture, inputs, target=reading.target, change=lambda _: start)
    scores = reading.per_token((difference * total).sum(-1))
    change = (reading.output - empty.output).detach()
    gap = scores.sum(1) - change
    far = gap.isnan() if tolerance is None else gap.abs() > tolerance
    if bool(far.any()):
        worst = int(gap.abs().argmax())
        raise ValueError(
            f"Integrated Gradients are not complete: in row {worst} they sum to "
            f"{float(scores[worst].sum()):.4g}, and f(x) − f(baseline) is "
            f"{float(change[worst]):.4g}. Take more than {steps} steps"
        )
    return IntegratedGradients(scores, change, gap)


@method("ig", "Integrated Gradients", "orange", options_of=integrated_gradients, rules=False)
def _scores(model: Handle, inputs: Mapping[str, Any], **options: Any) -> Tensor:
    return integrated_gradients(model, inputs, **options).scores


@method("smoothgrad", "SmoothGrad × input", rules=False)
def smoothgrad(
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
    spread = (
        top - reading.value.masked_fill(~inside, torch.inf).amin((1, 2), keepdim=True)
    ) * noise

    def around(rows: Tensor, draws: Tensor) -> Tensor:
        place = (reading.valid.long().cumsum(1) - 1).clamp(min=0)[rows]
        return reading.value[rows] + spread[rows] * bank[draws[:, None], place]

    total = torch.zeros_like(reading.value)
    for rows, _, gradient in _gradients(
        architecture, inputs, reading, around, samples, batch_tokens
    ):
        total.index_add_(0, rows, gradient / samples)
    return reading.relevance(total)


def _gradients(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    reading: Reading,
    embeddings: Callable[[Tensor, Tensor], Tensor],
    draws: int,
    batch_tokens: int,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Gradients at `embeddings(rows, draws)` for every row and draw, in batches of bounded size."""
    _at_least_one("batch_tokens", batch_tokens)
    batch, tokens = reading.valid.shape
    arguments = architecture.arguments(inputs)
    device = reading.valid.device
    pairs = torch.cartesian_prod(torch.arange(draws), torch.arange(batch)).to(device)
    for chunk in pairs.split(max(1, batch_tokens // tokens)):
        draw, rows = chunk[:, 0], chunk[:, 1]
        some = {k: v[rows] for k, v in arguments.items() if isinstance(v, Tensor)}
        values = embeddings(rows, draw)
        point = read(
            architecture, some, target=reading.target[rows], change=lambda _, to=values: to
        )
        yield rows, draw, point.gradient()


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


def _quadrature(name: str, steps: int) -> tuple[Tensor, Tensor]:
    """Points in [0, 1] and their weights, `(steps,)` each, float64."""
    _at_least_one("steps", steps)
    even = torch.full((steps,), 1 / steps, dtype=torch.float64)
    whole = torch.arange(1, steps + 1, dtype=torch.float64)
    if name == "midpoint":
        return (whole - 0.5) / steps, even
    if name == "right":
        return whole / steps, even
    if name == "gauss-legendre":
        points, weights = np.polynomial.legendre.leggauss(steps)
        return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)
    raise ValueError(f"unknown quadrature {name!r}: gauss-legendre, midpoint or right")


def _at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1 on; got {value!r}")
