"""Gradient methods on the plain model: gradient × input and Integrated Gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.inputs import check_token, special_tokens, tensor_rows
from lrputils.model.proof import prove_batch
from lrputils.model.readout import GRADIENT_TOKENS, Reading, Target, read


@method("grad-x-input", "Gradient × input", "purple", rules=False)
def _grad_x_input(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """Gradient × input: R_i = x_i · ∂f/∂x_i at the read-out tensor, `(batch, tokens)`.

    Args:
        readout: where the gradient is taken: "word", "sum" or "post-norm", see `READOUTS`.
    """
    reading = read(describe(model), inputs, target=target, readout=readout)
    return reading.relevance(reading.gradient())


@method("ig", "Integrated Gradients", "orange", rules=False, price=lambda _, steps, **__: 3 * steps)
def _integrated_gradients(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target,
    baseline: str | int | Tensor = "pad",
    steps: int = 32,
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """Integrated Gradients (Sundararajan et al., 2017) at the word embeddings, `(batch, tokens)`.

        R_i = (x_i − b_i) · ∫₀¹ ∂f/∂x_i (b + α (x − b)) dα,   by the midpoint rule

    The path goes in the space of word embeddings; positions stay as they are, and so do special
    tokens, which are their own baseline. Scores sum to f(x) − f(b), but for the quadrature's error.

    Args:
        baseline: where a token's embedding comes from: "zero", "pad", "mask" or a token id; ids of
            a text as long as these, (batch, tokens); or embeddings, (size,) or (batch, tokens,
            size).
        steps: points of the quadrature.
        batch_tokens: how many tokens go through the model at once; bounds the memory.

    Raises:
        ValueError: an unknown baseline, or a baseline token that is not known.
    """
    architecture = describe(model)
    for name, value in (("steps", steps), ("batch_tokens", batch_tokens)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number from 1 on; got {value!r}")
    reading = read(architecture, inputs, target=target)
    start = _baseline(architecture, inputs, reading, baseline)
    difference = reading.value - start
    batch, tokens = reading.valid.shape
    if not prove_batch(architecture, inputs).together:
        batch_tokens = 1
    pairs = torch.cartesian_prod(torch.arange(steps), torch.arange(batch)).to(start.device)
    mean = torch.zeros_like(start)
    for chunk in pairs.split(max(1, batch_tokens // tokens)):
        step, rows = chunk.T
        alpha = ((step.double() + 0.5) / steps).to(start)[:, None, None]
        values = start[rows] + alpha * difference[rows]
        some = tensor_rows(inputs, rows)
        point = read(
            architecture,
            some,
            target=reading.target[rows],
            change=lambda _, to=values: to,  # type: ignore[misc]
        )
        mean.index_add_(0, rows, point.gradient() / steps)
    return reading.per_token((difference * mean).sum(-1))


def _baseline(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    reading: Reading,
    baseline: str | int | Tensor,
) -> Tensor:
    """Word embeddings `(batch, tokens, size)` at the start of the path: special tokens stay."""
    like, device = reading.value, reading.value.device
    if architecture.kind.vision:
        kept = reading.head  # [CLS]
    else:
        kept = special_tokens(inputs).to(device) | ~reading.valid
    given = baseline
    if isinstance(given, str) and given == "zero":
        given = torch.zeros_like(like)
    elif not isinstance(given, Tensor):
        token = _baseline_token(architecture, inputs, given)
        given = torch.full(like.shape[:2], token)
    if not given.is_floating_point():
        if given.shape != like.shape[:2]:
            raise ValueError(
                f"baseline holds ids of shape {tuple(given.shape)}: a text to start from has as "
                f"many tokens as the one explained, {tuple(like.shape[:2])}"
            )
        with torch.no_grad():
            given = architecture.word_embeddings(given.to(device))
    try:
        start = given.to(like).expand_as(like)
    except RuntimeError:
        raise ValueError(
            f"baseline has shape {tuple(given.shape)}: embeddings are {tuple(like.shape)}, or "
            f"({like.shape[-1]},)"
        ) from None
    return torch.where(kept[..., None], like, start)


def completeness_gap(
    model: Handle,
    inputs: Mapping[str, Any],
    scores: Tensor,
    *,
    target: Target = None,
    baseline: str | int | Tensor = "pad",
) -> Tensor:
    """f(x) − f(b) − Σ scores of each text, (batch,): what the quadrature's steps have missed.

    Integrated Gradients sum to f(x) − f(b) (Sundararajan et al., 2017, Proposition 1).

    Args:
        model: as of `attribute`.
        inputs: the encoded texts.
        scores: their Integrated Gradients, (batch, tokens), special tokens included.
        target: the class explained.
        baseline: the one that they start from.

    Raises:
        ValueError: an unknown baseline.
    """
    architecture = describe(model)
    reading = read(architecture, inputs, target=target)
    start = _baseline(architecture, inputs, reading, baseline)
    begin = read(architecture, inputs, target=reading.target, change=lambda _: start)
    change = (reading.output - begin.output).detach()
    return change - scores.to(change).sum(-1)


def _baseline_token(
    architecture: Architecture, inputs: Mapping[str, Any], baseline: str | int
) -> int:
    if architecture.kind.vision:
        raise ValueError(f"baseline {baseline!r} is a token's; for images there is 'zero'")
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
    configured = getattr(architecture.config, name, None)
    token = getattr(inputs, "replacements", {}).get(baseline, configured)
    if token is None:
        raise ValueError(
            f"baseline {baseline!r}: neither the inputs nor the model's config name a {name}. "
            f"Pass the id itself, as baseline=tokenizer.{name}, or baseline='zero'"
        )
    check_token(architecture.model.get_input_embeddings(), token, f"baseline={baseline!r}")
    return token
