"""Leave-one-out on a budget: an estimate of every token, exact removal of those that matter most.

In a short text one pass of the mask gradient ranks the tokens and exact passes follow; in a long
one half-removal is worth its price first. AttriBoT (Liu et al., 2025) also prunes exact removals by
an estimate, of spans in decoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from lrputils.mistakes import one_of
from lrputils.model.architectures import Handle
from lrputils.model.inputs import tensor_rows
from lrputils.model.readout import Target
from lrputils.removal.coalitions import Coalitions
from lrputils.removal.mask_gradient import BOTH, free_tokens, mask_gradient, passes_of_groups

# Groups of half-removal beside an open pass; such an estimate may take this share of a budget.
_GROUPS, _SHARE = (2, 4, 8), 0.7
# In shorter texts exact passes are the better buy.
_SHORT = 64

COUNTED = ("content", "all")


def plan(tokens: int, budget: float) -> tuple[dict[str, Any], int]:
    """The setting for a budget: options of `mask_gradient`, and how many exact passes are left.

    The budget is a share of the passes that leave-one-out takes for so many tokens, or, from 3 on,
    a number of passes. In a text of up to 64, one forward and one backward pass with open gates
    ranks the tokens. In a longer one, half-removal in two, four or eight groups is added to it
    where both take at most 70% of the budget. The estimate is made even if the budget falls short
    of it, and left out if every token can be removed.
    """
    available = budget if budget > 1 else budget * tokens
    fits = [k for k in _GROUPS if BOTH * (k + 1) <= _SHARE * available and tokens > _SHORT]
    options = {"groups": max(fits), "with_open": True} if fits else {}
    left = available - BOTH * (max(fits) + 1 if fits else 1)
    return options, tokens if available >= tokens else max(0, int(left))


def price(tokens: int, *, budget: float, **_: Any) -> float:
    """Return how many forward passes a text of so many tokens takes."""
    options, exact = plan(tokens, budget)
    return exact if exact == tokens else passes_of_groups(**options) + exact


@torch.inference_mode(False)
def budgeted_loo(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    budget: float = 9,
    counted: str = "content",
    batch_tokens: int | None = None,
) -> Tensor:
    """Leave-one-out by the attention mask at part of its passes, `(batch, tokens)`; by default the
    mask gradient, and six tokens that it ranks first removed exactly.

    Args:
        budget: share of leave-one-out's passes to spend, between 0 and 1, or a number of passes a
            text, 3 or more; `plan` says on what. At 1, or a pass per token, every score is exact.
        counted: which tokens' scores will count: "content" removes special tokens last, "all"
            first, since no estimate of theirs is any good.
        batch_tokens: most tokens in one batch; the default suits the device.

    Raises:
        TypeError: the model is not covered.
        ValueError: a budget of neither kind, another `counted`, or what `mask_gradient` refuses.
    """
    if not (0 < budget <= 1 or budget >= BOTH):
        raise ValueError(
            f"budget={budget} is neither a share of leave-one-out's passes, 0 < budget <= 1, nor a "
            f"number of passes, {BOTH} or more"
        )
    one_of("counted", counted, COUNTED)
    f = Coalitions(model, inputs, target=target, special=True, batch_tokens=batch_tokens)
    plans = [plan(len(text), budget) for text in f.texts]
    valid = f.where.to(f.whole.device)
    estimate = f.whole.new_zeros(valid.shape)
    estimated = [exact < len(text) for (_, exact), text in zip(plans, f.texts, strict=True)]
    kinds = [tuple(options.items()) for options, _ in plans]
    for kind in dict.fromkeys(compress(kinds, estimated)):  # one plan's texts share their batches
        same = torch.tensor([kind == own for own in kinds])
        how = {"target": f.chosen[same.to(f.chosen.device)], **dict(kind)}
        estimate[same] = mask_gradient(f.architecture, tensor_rows(inputs, same), **how)
    free = free_tokens(f.architecture, inputs, valid)
    special = torch.inf if counted == "all" else estimate.abs() / (1 + estimate.abs())
    order = torch.where(free, estimate.abs() + 1, special).where(valid, -1.0)
    ranks = order.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    counts = torch.tensor([left for _, left in plans], device=ranks.device)
    exact = (ranks < counts[:, None]) & valid
    chosen = [row[own].nonzero().cpu().numpy() for row, own in zip(exact, valid, strict=True)]
    values = f.values(chosen, "LOO", progress=False)
    losses = [full - left for full, left in zip(f.whole, values, strict=True)]
    return estimate.masked_scatter(exact, torch.cat(losses).to(estimate))
