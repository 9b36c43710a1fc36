"""Leave-one-out estimated from gates on the keys: the mask gradient and half-removal.

Give token i a gate m_i on its key, in every layer, head and query: A_ji ∝ m_i exp(Z_ji). Then
leave-one-out is f(1) − f(m_i = 0), the integral of a derivative along any path of gates between the
two. With g_j the gradient of f at a block's output O_j, two paths give

    first-order   A_ji (V_i − O_j)·g_j / m_i         = ∂f/∂m_i
    exact-block   A_ji / (1 − A_ji) (V_i − O_j)·g_j  = (O_j − O_j without i)·g_j = −∂f/∂a_i

summed over layers, heads and queries j. The second walks straight from one *output* to the other,
O_j(a) = (1 − a) O_j + a (O_j without i), so that it is exact wherever the rest is linear. One pass
takes the derivative where nothing is removed. Half-removal takes it where the tokens of a group are
half removed, with one row a group. The errors of the two differ in kind, so that their mean is
closer than either (chapter 7). The gate's gradient is known: Reversed Attention (Katz and Wolf,
2025) writes A_ji (V_i − O_j)·g_j, and CAOTE (2025) A / (1 − A).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lrputils.mistakes import one_of, whole_number
from lrputils.model.architectures import Architecture, Handle
from lrputils.model.attention import AttentionCall, Recorder, fused, with_all_heads
from lrputils.model.inputs import tensor_rows
from lrputils.model.operations import Operations, routed
from lrputils.model.proof import laid_out
from lrputils.model.readout import GRADIENT_TOKENS, Target, read

FORMS = ("exact-block", "first-order")
BOTH = 3  # a forward and a backward pass, in forward passes
# Largest number of attention weights held at once, per tensor.
_CELLS = 2**25


def passes_of_groups(
    tokens: int = 0, *, groups: int | None = None, with_open: bool = False, **_: Any
) -> int:
    """Return how many forward passes of a text, whatever its length, these options take."""
    return BOTH * ((groups or 1) + with_open)


@torch.inference_mode(False)
def mask_gradient(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    form: str = "exact-block",
    groups: int | None = None,
    gate: float | None = None,
    with_open: bool = False,
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """Estimate leave-one-out by the attention mask for every token at once.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: a batch of encoded texts, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        form: "exact-block" or "first-order", see the module's equations.
        groups: deal each text's tokens into this many groups; each is a row of its own, in which
            the group's gates are closed to `gate`. None is one row with every gate open.
        gate: how far open a group's gates are, between 0 and 1, 0.5 if not given.
        with_open: with groups, add the row with every gate open, and return the mean of both maps,
            each divided by its mean absolute score, in logits; more groups weigh more.
        batch_tokens: how many tokens go through the model at once; bounds the memory.

    The queries of the token itself (j = i) do not count: once a token is masked, no one reads what
    its own query gathers; that of the token that the head reads counts in full. It and special
    tokens stay open: with groups, their score is the mean over the groups' rows.

    Returns:
        (batch, tokens) on the model's device, 0 at padding; float32, for a float64 model float64.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown form, no group, `batch_tokens` below one, a gate outside (0, 1] (0
            too for "exact-block"), an option of groups without groups, or what `read` refuses.
    """
    architecture = laid_out(model)
    one_of("form", form, FORMS)
    if groups is None and (gate is not None or with_open):
        name = "with_open=True" if gate is None else f"gate={gate!r}"
        raise ValueError(f"{name} is about groups: pass groups= too")
    if groups is None:
        return _at(architecture, inputs, target, Gates(form))
    whole_number("groups", groups)
    whole_number("batch_tokens", batch_tokens)
    gate, least = 0.5 if gate is None else gate, 0.0 if form == FORMS[0] else 1e-6
    if not least <= gate <= 1:
        raise ValueError(f"gate={gate:g}: form={form!r} takes gates from {least:g} to 1")
    reading = read(architecture, inputs, target=target)
    free = free_tokens(architecture, inputs, reading.valid)
    turn = (free.long().cumsum(1) - 1) % groups
    gone = (turn == torch.arange(groups, device=free.device)[:, None, None]) & free
    kept = gone.any(2)  # the rows, (groups, texts)
    kept[0] = True
    inside, rows_of = gone.any(0), kept.sum(0)
    wide = torch.promote_types(next(architecture.model.parameters()).dtype, torch.float32)
    total = torch.zeros(free.shape, dtype=wide, device=free.device)
    for chunk in kept.nonzero().split(max(1, batch_tokens // free.shape[1])):
        group, text = chunk.T
        closed = Gates(form, (1 - gate) * gone[group, text].to(wide))
        scores = _at(architecture, tensor_rows(inputs, text), reading.target[text], closed)
        # A token's score is that of the row in which it goes; that of one that stays, a mean.
        own = gone[group, text] | ~inside[text]
        scores = scores * own / torch.where(inside, 1, rows_of[:, None])[text]
        total.index_add_(0, text, scores.to(wide))
    grouped = reading.per_token(total)
    if not with_open:
        return grouped
    return added(_at(architecture, inputs, reading.target, Gates(form)), grouped, free, groups)


def added(whole: Tensor, grouped: Tensor, where: Tensor, groups: int) -> Tensor:
    """The mean of an open pass and half-removal that weighs a large map less, (batch, tokens) each.

    Each weight is one over the mean absolute score over the tokens of `where`: on a text where one
    estimate runs away, the other one counts. Two groups weigh as much as the open pass, four twice:
    with more, fewer tokens are gone where a gradient is taken.
    """
    count = where.sum(1, keepdim=True).clamp(min=1)
    small = torch.finfo(whole.dtype).tiny ** 0.5
    sizes = ((x.abs() * where).sum(1, keepdim=True) / count for x in (whole, grouped))
    one, two = (1 / size.clamp(min=small) for size in sizes)
    two = two * groups / 2
    return (one * whole + two * grouped) / (one + two)


def free_tokens(architecture: Architecture, inputs: Mapping[str, Any], valid: Tensor) -> Tensor:
    """Tokens that are neither special, where the inputs say so, nor read by the head."""
    free = valid & ~one_hot(architecture.head_tokens(valid), valid.shape[1]).bool()
    special = inputs.get("special_tokens_mask")
    return free if special is None else free & ~special.bool().to(free.device)


def _at(
    architecture: Architecture, inputs: Mapping[str, Any], target: Target, gates: Gates
) -> Tensor:
    """Every token's score where the gates stand."""
    with routed(architecture, gates) as route:
        return block_scores(route, architecture, inputs, target, gates).sum(0)


@dataclass(frozen=True)
class Gates:
    """Attention of which `closed` (batch, tokens) is removed: 0 nothing, 1 the whole token.

    A token's own query keeps it. Without `closed` every gate is open.
    """

    form: str = "exact-block"
    closed: Tensor | None = None

    def __call__(self, call: AttentionCall) -> tuple[Tensor, None]:
        """Answer a call: on the straight path of outputs, or with gated weights."""
        if self.closed is None:
            return fused(call)
        weights = call.weights()
        gates = self._factor(weights)
        if self.form != "exact-block":
            return call.combined(_renormalised(weights * gates)), None
        share = self.closed.amax(1).to(weights)[:, None, None, None]
        without = _renormalised(weights.masked_fill(gates < 1, 0.0))
        return call.combined((1 - share) * weights + share * without), None

    def _factor(self, weights: Tensor) -> Tensor:
        """Gates as a factor of weights (batch, heads, queries, keys): (batch, 1, queries, keys)."""
        held = torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device)
        gates = (1 - self.closed.to(weights))[:, None, None, :]
        return torch.where(held, 1.0, gates)


def _renormalised(weights: Tensor) -> Tensor:
    """Rows that sum to one; a row without any weight stays as it is."""
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > 0, total, 1.0)


def in_parts(
    call: AttentionCall, gradient: Tensor
) -> Iterator[tuple[slice, AttentionCall, Tensor, Tensor]]:
    """A call's batch in parts, so that a part's attention weights stay within bounds of memory.

    With each part's call A_ji and V_i·g_j, both (batch, heads, queries, keys), in float32 at least;
    `gradient` is what flows back to the block's output.
    """
    batch, heads, tokens, _ = call.query.shape
    wide = torch.promote_types(call.query.dtype, torch.float32)
    step = max(1, _CELLS // (heads * tokens**2))
    for start in range(0, batch, step):
        some = slice(start, start + step)
        mask = call.mask
        if mask is not None and mask.shape[0] > 1:
            mask = mask[some]
        factors = (factor[some].to(wide) for factor in call.factors)
        part = replace(call.with_factors(*factors), mask=mask)
        received = gradient[some].to(wide).transpose(1, 2)
        value = with_all_heads(part.value, part.query)
        yield some, part, part.weights(), received @ value.transpose(-2, -1)


def first_order(weights: Tensor, products: Tensor) -> Tensor:
    """A_ji (V_i − O_j)·g_j, from A_ji and V_i·g_j, both (…, queries, keys)."""
    return (products - (weights * products).sum(-1, keepdim=True)).mul_(weights)


def exact_block(weights: Tensor, products: Tensor) -> Tensor:
    """A_ji / (1 − A_ji) (V_i − O_j)·g_j, from A_ji and V_i·g_j, both (…, queries, keys).

    A row's largest weight may be so close to one that 1 − A_ji is all rounding. There the equal
    form A_ji (V_i − O_j without i)·g_j is taken, with the sum over the others formed directly. A
    query left without any key receives nothing.
    """
    top = weights.argmax(-1, keepdim=True)
    others = weights.scatter(-1, top, 0.0)
    rest = others.sum(-1, keepdim=True)
    without = others.mul_(products).sum(-1, keepdim=True) / torch.where(rest > 0, rest, 1.0)
    at_top = weights.gather(-1, top) * (products.gather(-1, top) - without)
    below_half = (1 - weights).clamp_(min=0.5)
    return first_order(weights, products).div_(below_half).scatter_(-1, top, at_top)


def block_scores(
    route: Operations,
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    gates: Gates = Gates(),
) -> Tensor:
    """Every layer's share of each token's score, (layers, batch, tokens), 0 at padding.

    By one forward and one backward pass of a model whose attention goes through `route`.
    """
    route.function = blocks = Recorder(route.function)
    reading = read(architecture, inputs, target=target)
    route.check_calls()
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    layers = []
    with torch.no_grad():
        for call, gradient in zip(blocks.calls, gradients, strict=True):
            scored = []
            for some, _, weights, products in in_parts(call, gradient):
                if gates.form == "exact-block":
                    effect = exact_block(weights, products)
                elif gates.closed is None:
                    effect = first_order(weights, products)
                else:
                    factor = replace(gates, closed=gates.closed[some])._factor(weights)
                    effect = first_order(_renormalised(weights * factor), products) / factor
                scored.append(without_own_row(effect.sum(1), reading.head[some]))
            layers.append(reading.per_token(torch.cat(scored)))
    return torch.stack(layers)


def without_own_row(effect: Tensor, readout: Tensor) -> Tensor:
    """Sum effects (batch, queries, keys) over the queries that a removed key leaves: (batch, keys).

    The removed token's own query does not count, except where `readout` (batch, tokens) is true.
    """
    return effect.sum(1) - torch.where(readout, 0.0, effect.diagonal(dim1=1, dim2=2))
