"""The methods: LRP, those that read attention weights, gradients, and those that remove tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import method
from lrputils.mistakes import one_of, whole_number
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.attention import Recorder, stepwise
from lrputils.model.inputs import check_token, special_tokens, tensor_rows
from lrputils.model.operations import routed
from lrputils.model.proof import laid_out, prove_batch
from lrputils.model.readout import GRADIENT_TOKENS, Reading, Target, read
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    Composite,
    covered,
    installed,
    propagating,
)
from lrputils.propagation.rules import UNITS
from lrputils.removal import budgeted
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import block_scores, mask_gradient, passes_of_groups
from lrputils.removal.shapley import ALL, LONGEST, shapley_values

method(
    "loo",
    "LOO",
    "ink",
    rules=False,
    price=lambda tokens, **_: tokens,
    told="leave-one-out, exact: f(x) − f(x without token i)",
)(leave_one_out)
method(
    "budgeted-loo",
    "Budgeted LOO",
    "slate",
    price=budgeted.price,
    told="LOO, exact for the words that the mask gradient ranks first",
)(budgeted.budgeted_loo)
method(
    "mask-gradient",
    "Mask gradient",
    "green",
    price=passes_of_groups,
    told="LOO, estimated by a gradient of the attention mask",
)(mask_gradient)


@method(
    "shapley",
    "Shapley values",
    "olive",
    options_of=shapley_values,
    rules=False,
    price=lambda tokens, permutations, **_: (
        2 ** min(tokens, LONGEST) if permutations == ALL else permutations * tokens
    ),
    told="Shapley values, of sampled orders or exact",
)
def _shapley(model: Handle, inputs: Mapping[str, Any], **options: Any) -> Tensor:
    """The scores of `shapley_values`, whose errors and intervals `attribute` does not return."""
    return shapley_values(model, inputs, **options).scores


@method("grad-x-input", "Gradient × input", "purple", rules=False)
def _grad_x_input(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, readout: str = "word"
) -> Tensor:
    """R_i = x_i · ∂f/∂x_i at the read-out tensor, `(batch, tokens)`.

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
    """The mean gradient from a baseline (Sundararajan et al., 2017), × input, `(batch, tokens)`.

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
    steps, batch_tokens = whole_number("steps", steps), whole_number("batch_tokens", batch_tokens)
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
    if architecture.vision:
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
    if architecture.vision:
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
    """LRP: half to each factor, softmax by its Jacobian (Achtibat et al., 2024).

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
    """LRP with attention weights held constant (Ali et al., 2022).

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
    """AttnLRP with each attention block as one unit, whatever its inner order.

    Args:
        unit: what a block's Q, K and V get: "thirds" of its gradient, or its mean gradient on the
            "path" from zero, which conserves relevance.
        readout: where relevance is read: "word", "sum" or "post-norm", see `READOUTS`; or "blocks",
            what removing the token's key from each block takes from the relevance there.
    """
    composite = ATTN_LRP.but(attention=one_of("unit", unit, UNITS))
    if readout == "blocks":
        return lrp_at_blocks(model, inputs, composite, target=target)
    return lrp(model, inputs, composite, target=target, readout=readout)


@method("rollout", "Attention Rollout", "sky", price=lambda *_, **__: 1)
def _rollout(
    model: Handle, inputs: Mapping[str, Any], *, target: Target, variant: str = "paper"
) -> Tensor:
    """The read-out token's row of the attention weights' product, A_L · … · A_1.

    A_l is the mean over the heads of layer l. The scores do not depend on the target. Of an answer
    it is the mean row of the tokens that predict it.

    Args:
        variant: "paper" multiplies the A_l as they are; "abnar" is Abnar and Zuidema (2020):
            (A_l + I) / 2, for the residual connection.

    Raises:
        ValueError: an unknown variant.
    """
    one_of("variant", variant, ("paper", "abnar"))
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
    """R_i = Σ A_ji · ∂f/∂A_ji, `(batch, tokens)`.

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
