"""All leave-one-out scores at once from one forward and one backward pass: the mask gradient.

Give token i a gate m_i on its key, in every layer, head and query: A_ji ∝ m_i exp(Z_ji). Then
leave-one-out is f(1) − f(m_i = 0). Its estimate here looks at each attention block on its own,
with g_j the gradient of f at the block's output O_j:

    first-order   A_ji (V_i − O_j)·g_j               = m_i ∂(O_j·g_j)/∂m_i at m = 1
    exact-block   A_ji / (1 − A_ji) (V_i − O_j)·g_j  = (O_j − O_j without key i)·g_j

summed over layers, heads and queries j. The first is the gradient of f with respect to the gates;
the second removes the key from the block exactly and is linear only in what follows. Both depend
on f(x, m) alone, not on how it is factored. Exact removal is in `lrputils.removal.leave_one_out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall, Recorder, routed, with_all_heads
from lrputils.model.handles import Handle
from lrputils.model.readout import Target, read

FORMS = ("exact-block", "first-order")
# Largest number of attention weights held at once, per tensor.
_CELLS = 2**25


@torch.inference_mode(False)
def mask_gradient(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    form: str = "exact-block",
    own_row: bool = False,
) -> Tensor:
    """Estimate leave-one-out by the attention mask for every token, in two passes.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: a batch of encoded texts, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        form: "exact-block" or "first-order", see the module's equations.
        own_row: count the queries of the token itself (j = i) too, as the gradient with respect to
            the gates does. By default they do not count: once a token is masked, no one reads what
            its own query gathers. The token that the head reads always counts in full.

    Returns:
        (batch, tokens) on the model's device, 0 at padding; float32, for a float64 model float64.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown form, or what `read` refuses.
    """
    if form not in FORMS:
        raise ValueError(f"form={form!r} is not one of {FORMS}")
    blocks = Recorder()
    with routed(architecture := describe(model), blocks):
        reading = read(architecture, inputs, target=target)
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    with torch.no_grad():
        scores = sum(
            _scores(call, gradient, reading.head, form, own_row)
            for call, gradient in zip(blocks.calls, gradients, strict=True)
        )
    return reading.per_token(scores)


def parts(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """A call's batch in parts, so that a part's attention weights stay within bounds of memory."""
    batch, heads, tokens, _ = call.query.shape
    step = max(1, _CELLS // (heads * tokens**2))
    for start in range(0, batch, step):
        some = slice(start, start + step)
        mask = call.mask
        if mask is not None and mask.shape[0] > 1:
            mask = mask[some]
        factors = (factor[some] for factor in call.factors)
        yield some, replace(call.with_factors(*factors), mask=mask)


def weights_and_products(call: AttentionCall, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A_ji and V_i·g_j, both (batch, heads, queries, keys), in float32 at least."""
    wide = torch.promote_types(call.query.dtype, torch.float32)
    call = call.with_factors(*(factor.to(wide) for factor in call.factors))
    received = gradient.to(wide).transpose(1, 2)
    return call.weights(), received @ with_all_heads(call.value, call.query).transpose(-2, -1)


def first_order(weights: Tensor, products: Tensor) -> Tensor:
    """A_ji (V_i − O_j)·g_j, from A_ji and V_i·g_j, both (…, queries, keys)."""
    return weights * (products - (weights * products).sum(-1, keepdim=True))


def exact_block(weights: Tensor, products: Tensor) -> Tensor:
    """A_ji / (1 − A_ji) (V_i − O_j)·g_j, from A_ji and V_i·g_j, both (…, queries, keys).

    A row's largest weight may be so close to one that 1 − A_ji is all rounding. There the equal
    form A_ji (V_i − O_j without i)·g_j is taken, with the sum over the others formed directly. A
    query left without any key receives nothing.
    """
    top = weights.argmax(-1, keepdim=True)
    others = weights.scatter(-1, top, 0.0)
    rest = others.sum(-1, keepdim=True)
    without = (others * products).sum(-1, keepdim=True) / torch.where(rest > 0, rest, 1.0)
    at_top = weights.gather(-1, top) * (products.gather(-1, top) - without)
    below_half = (1 - weights).clamp(min=0.5)
    return (first_order(weights, products) / below_half).scatter(-1, top, at_top)


def _scores(
    call: AttentionCall, gradient: Tensor, readout: Tensor, form: str, own_row: bool
) -> Tensor:
    """One layer's share of every token's score, (batch, tokens); part of the batch at a time."""
    block = first_order if form == "first-order" else exact_block
    scored = []
    for some, rows in parts(call):
        effect = block(*weights_and_products(rows, gradient[some])).sum(1)
        scored.append(effect.sum(1) if own_row else without_own_row(effect, readout[some]))
    return torch.cat(scored)


def without_own_row(effect: Tensor, readout: Tensor) -> Tensor:
    """Sum effects (batch, queries, keys) over the queries that a removed key leaves: (batch, keys).

    The removed token's own query does not count, except where `readout` (batch, tokens) is true.
    """
    return effect.sum(1) - torch.where(readout, 0.0, effect.diagonal(dim1=1, dim2=2))
