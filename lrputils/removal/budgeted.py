"""Leave-one-out on a budget: an estimate of every token, exact removal of those that matter most.

In a short text one pass of the mask gradient ranks the tokens and exact passes follow; in a long
one half-removal is worth its price first. What stays estimated gets an error bar: the largest
error, in units of the text's own size, that all but a few tokens of other texts stay within. Split
conformal prediction (Vovk et al., 2005) takes its quantile so, and promises coverage for one token
drawn from each new text; tokens of a text depend on one another, and here they are pooled, so the
coverage is measured, not promised. AttriBoT (Liu et al., 2025) also prunes exact removals by an
estimate, of spans in decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Handle, describe
from lrputils.model.readout import Target, take_rows
from lrputils.removal.leave_one_out import removed_rows, start
from lrputils.removal.mask_gradient import free_tokens, mask_gradient
from lrputils.removal.packing import evaluate

# A forward and a backward pass, in forward passes.
_BOTH = 3
# Groups of half-removal beside an open pass; such an estimate may take this share of a budget.
_GROUPS, _SHARE = (2, 4, 8), 0.7
# In shorter texts exact passes are the better buy.
_SHORT = 64

COUNTED = ("content", "all")


class Verified(NamedTuple):
    """Leave-one-out, partly exact: (batch, tokens) each.

    `scores` are exact where `exact`, else `estimate`, which every token has.
    """

    scores: Tensor
    estimate: Tensor
    exact: Tensor


def plan(tokens: int, budget: float) -> tuple[dict[str, Any], int]:
    """The setting for a budget: options of `mask_gradient`, and how many exact passes are left.

    The budget is a share of the passes that leave-one-out takes for so many tokens. In a text of up
    to 64, one forward and one backward pass with open gates ranks the tokens. In a longer one,
    half-removal in two, four or eight groups is added to it where both take at most 70% of the
    budget. The estimate is made even if the budget falls short of it.
    """
    available = budget * tokens
    fits = [k for k in _GROUPS if _BOTH * (k + 1) <= _SHARE * available and tokens > _SHORT]
    options = {"groups": max(fits), "with_open": True} if fits else {}
    left = available - _BOTH * (max(fits) + 1 if fits else 1)
    return options, tokens if budget >= 1 else max(0, int(left))


def budgeted_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    budget: float = 0.2,
    counted: str = "content",
    batch_tokens: int | None = None,
) -> Tensor:
    """Leave-one-out by the attention mask at a share of its passes, `(batch, tokens)`.

    Args:
        budget: share of leave-one-out's passes to spend, between 0 and 1; `plan` says on what. At 1
            every score is exact.
        counted: which tokens' scores will count: "content" removes special tokens last, "all"
            first, since no estimate of theirs is any good.
        batch_tokens: most tokens in one batch; the default suits the device.

    Raises:
        TypeError: the model is not covered.
        ValueError: a budget outside (0, 1], another `counted`, or what `mask_gradient` refuses.
    """
    how = {"budget": budget, "counted": counted, "batch_tokens": batch_tokens}
    return verified_loo(model, inputs, target=target, **how).scores


@torch.inference_mode(False)
def verified_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    budget: float = 0.2,
    counted: str = "content",
    batch_tokens: int | None = None,
) -> Verified:
    """`budgeted_loo` with the estimates, and which scores are exact; arguments are the same."""
    if not 0 < budget <= 1:
        raise ValueError(f"budget={budget} is no share of leave-one-out's passes: 0 < budget <= 1")
    if counted not in COUNTED:
        raise ValueError(f"counted={counted!r} is not one of {COUNTED}")
    architecture = describe(model)
    texts, full, read = start(architecture, inputs, target, "logit", batch_tokens)
    plans = [plan(len(text), budget) for text in texts]
    estimate = _estimated(architecture, inputs, target, plans)
    mask = inputs.get("attention_mask")
    valid = torch.ones_like(estimate) if mask is None else mask.to(estimate.device)
    head, valid = architecture.head_mask(valid), valid.bool()
    content = free_tokens(inputs, valid, head)
    counts = [left for _, left in plans]
    exact = most_relevant(estimate, content, valid, counts, special_first=counted == "all")
    each = [np.arange(len(text))[:, None] for text in texts]
    rows = removed_rows(architecture, texts, each, "attention-mask", inputs)
    rows = [row for row, wanted in zip(rows, exact[valid].tolist(), strict=True) if wanted]
    known = torch.zeros_like(estimate)
    if rows:
        without = evaluate(architecture, texts, rows, read, batch_tokens=batch_tokens)
        of_text = torch.tensor([row.text for row in rows], device=full.device)
        known[exact] = (full[of_text] - without).to(known)
    return Verified(torch.where(exact, known, estimate), estimate, exact)


def _estimated(architecture: Any, inputs: Mapping[str, Any], target: Target, plans: list) -> Tensor:
    """Each text's estimate by its own plan; texts of one plan share their batches."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    total = None
    for options in [dict(pair) for pair in {tuple(options.items()) for options, _ in plans}]:
        same = torch.tensor([options == other for other, _ in plans])
        some = {name: value[same.to(value.device)] for name, value in tensors.items()}
        scores = mask_gradient(architecture, some, target=take_rows(target, same), **options)
        total = scores.new_zeros(len(plans), scores.shape[1]) if total is None else total
        total[same.to(total.device)] = scores
    return total


def most_relevant(
    estimate: Tensor,
    content: Tensor,
    valid: Tensor,
    counts: list[int],
    special_first: bool = False,
) -> Tensor:
    """The tokens of largest |estimate|, so many a text, special ones last or first: boolean."""
    special = torch.inf if special_first else estimate.abs() / (1 + estimate.abs())
    order = torch.where(content, estimate.abs() + 1, special)
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


def bar_factor(found: Verified, loo: Tensor, where: Tensor, coverage: float = 0.9) -> float:
    """How many `units` an error bar spans so that it covers the exact score.

    Args:
        found: of the calibration texts, by the budget that will be used; `loo` their exact scores,
            and `where` the tokens that count, (batch, tokens) each.
        coverage: share of these estimated tokens whose bar holds the exact score, and what is aimed
            at on other texts; tokens of one text are not independent, so nothing is promised.

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


def half_widths(found: Verified, where: Tensor, factor: float) -> Tensor:
    """Half of each score's error bar, (batch, tokens): 0 where exact; `bar_factor`'s factor."""
    return torch.where(found.exact, 0.0, factor * units(found, where))
