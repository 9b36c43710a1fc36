"""Leave-one-out on a budget: an estimate of every token, exact removal of those that matter most.

The mask gradient ranks the tokens and half-removal costs little more, so that exact passes go where
they count. What stays estimated gets an error bar, calibrated on texts whose leave-one-out is known
(split conformal prediction; Vovk et al., 2005): the largest error, in units of the text's own size,
that all but a few of their tokens stay within. AttriBoT (Liu et al., 2025) also prunes exact
removals by an estimate, of spans in decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.handles import Handle
from lrputils.model.readout import Target
from lrputils.removal.leave_one_out import start, token_rows
from lrputils.removal.mask_gradient import free_tokens, mask_gradient
from lrputils.removal.packing import evaluate

# A forward and a backward pass, in forward passes.
_BOTH = 3
# An estimate by groups may take this share of a budget.
_SHARE, _GROUPS = 1 / 2, (1, 4, 8)
# In one pass for all tokens, a gate that is half closed helps short texts and harms long ones.
_SHORT, _GATE = 64, 0.7


# How a text's estimates are rescaled to its exact scores: ridge, and the factors allowed.
_RIDGE, _FACTORS = 0.1, (0.1, 2.0)


class Verified(NamedTuple):
    """Leave-one-out, partly exact: (batch, tokens) each.

    `scores` are exact where `exact`, else `estimate`, which every token has, rescaled (see
    `combined`).
    """

    scores: Tensor
    estimate: Tensor
    exact: Tensor


def plan(tokens: int, budget: float) -> tuple[dict[str, Any], int]:
    """The setting for a budget: options of `mask_gradient`, and how many exact passes are left.

    Up to half of the budget, a share of the passes that leave-one-out takes for so many tokens,
    goes to half-removal with 4 or 8 groups; else one forward and one backward pass ranks the
    tokens, in a short text with every gate at 0.7. The estimate is made even if the budget falls
    short of it.
    """
    available = budget * tokens
    groups = max(k for k in _GROUPS if k == 1 or k * _BOTH <= _SHARE * available)
    gate = 0.5 if groups > 1 else _GATE if tokens <= _SHORT else None
    options = {"groups": groups if gate else None, "gate": gate}
    left = tokens if budget >= 1 else max(0, int(available) - _BOTH * groups)
    return options, min(left, tokens)


def budgeted_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    budget: float = 0.2,
    batch_tokens: int | None = None,
) -> Tensor:
    """Leave-one-out by the attention mask at a share of its passes, `(batch, tokens)`.

    Args:
        budget: share of leave-one-out's passes to spend, between 0 and 1; `plan` says on what. At 1
            every score is exact.
        batch_tokens: most tokens in one batch; the default suits the device.

    Raises:
        TypeError: the model is not covered.
        ValueError: a budget outside (0, 1], or what `mask_gradient` refuses.
    """
    found = verified_loo(model, inputs, target=target, budget=budget, batch_tokens=batch_tokens)
    return found.scores


@torch.inference_mode(False)
def verified_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    budget: float = 0.2,
    batch_tokens: int | None = None,
) -> Verified:
    """`budgeted_loo` with the estimates, and which scores are exact; arguments are the same."""
    if not 0 < budget <= 1:
        raise ValueError(f"budget={budget} is no share of leave-one-out's passes: 0 < budget <= 1")
    architecture = describe(model)
    texts, full, read = start(architecture, inputs, target, "logit", batch_tokens)
    plans = [plan(len(text), budget) for text in texts]
    estimate = _estimated(architecture, inputs, target, plans)
    mask = inputs.get("attention_mask")
    valid = torch.ones_like(estimate) if mask is None else mask.to(estimate.device)
    head, valid = architecture.head_mask(valid), valid.bool()
    content = free_tokens(inputs, valid, head)
    exact = most_relevant(estimate, content, valid, [left for _, left in plans])
    rows = token_rows(architecture, texts, "attention-mask", inputs)
    rows = [row for row, wanted in zip(rows, exact[valid].tolist(), strict=True) if wanted]
    known = torch.zeros_like(estimate)
    if rows:
        without = evaluate(architecture, texts, rows, read, batch_tokens=batch_tokens)
        of_text = torch.tensor([row.text for row in rows], device=full.device)
        known[exact] = (full[of_text] - without).to(known)
    return combined(estimate, known, exact, content)


def combined(estimate: Tensor, known: Tensor, exact: Tensor, where: Tensor) -> Verified:
    """Put exact scores in the place of estimates, and rescale the estimates to them.

    Where its group is gone too, a token may count for more than alone, by a factor that the tokens
    of a text share. It is fitted, by least squares, to the exact scores among the tokens of
    `where`, and drawn towards 1. All are (batch, tokens); `known` is read only where `exact`.
    """
    seen = exact & where
    square = (estimate**2 * seen).sum(1, keepdim=True)
    product = (estimate * known * seen).sum(1, keepdim=True)
    factor = (product + _RIDGE * square) / ((1 + _RIDGE) * square)
    factor = torch.where(square > 0, factor, 1.0).clamp(*_FACTORS)
    scaled = factor * estimate
    return Verified(torch.where(exact, known, scaled), scaled, exact)


def _estimated(architecture: Any, inputs: Mapping[str, Any], target: Target, plans: list) -> Tensor:
    """Each text's estimate by its own plan; texts of one plan share their batches."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    chosen = None if target is None else torch.as_tensor(target).expand(len(plans))
    total = None
    for options in [dict(pair) for pair in {tuple(options.items()) for options, _ in plans}]:
        same = torch.tensor([options == other for other, _ in plans])
        some = {name: value[same.to(value.device)] for name, value in tensors.items()}
        wanted = None if chosen is None else chosen[same.to(chosen.device)]
        scores = mask_gradient(architecture, some, target=wanted, **options)
        total = scores.new_zeros(len(plans), scores.shape[1]) if total is None else total
        total[same.to(total.device)] = scores
    return total


def most_relevant(estimate: Tensor, content: Tensor, valid: Tensor, counts: list[int]) -> Tensor:
    """The tokens of largest |estimate|, so many a text, special ones last: (batch, tokens)."""
    order = torch.where(content, estimate.abs() + 1, estimate.abs() / (1 + estimate.abs()))
    order = torch.where(valid, order, -1.0)
    ranks = order.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (ranks < torch.tensor(counts, device=ranks.device)[:, None]) & valid


def units(found: Verified, where: Tensor) -> Tensor:
    """What errors are measured in, (batch, tokens): |estimate| + the text's typical error.

    The typical error is the mean one of the text's exact scores, or the mean |estimate| where it
    has none. Only tokens of `where` count.
    """
    seen = found.exact & where
    seen = torch.where(seen.any(1, keepdim=True), seen, where)
    error = (found.scores - found.estimate).abs()
    error = torch.where((found.exact & where).any(1, keepdim=True), error, found.estimate.abs())
    typical = (error * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
    return found.estimate.abs() + typical


def calibrate(found: Verified, loo: Tensor, where: Tensor, coverage: float = 0.9) -> float:
    """How many `units` an error bar spans so that it covers the exact score.

    Args:
        found: of the calibration texts, by the budget that will be used; `loo` their exact scores,
            and `where` the tokens that count, (batch, tokens) each.
        coverage: share of the estimated tokens of other texts whose bar is to hold the exact score.

    Raises:
        ValueError: coverage outside (0, 1), or too few estimated tokens to calibrate it on.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage} is not between 0 and 1")
    open_ = where & ~found.exact
    ratio = ((loo - found.estimate).abs() / units(found, where).clamp(min=1e-30))[open_]
    rank = int(-(-coverage * (len(ratio) + 1) // 1))
    if rank > len(ratio):
        raise ValueError(
            f"{len(ratio)} estimated tokens are too few for error bars of coverage={coverage}: "
            "calibrate on more texts"
        )
    return float(ratio.sort().values[rank - 1])


def half_widths(found: Verified, where: Tensor, calibration: float) -> Tensor:
    """Half of each score's error bar, (batch, tokens): 0 where exact; `calibration` from above."""
    return torch.where(found.exact, 0.0, calibration * units(found, where))
