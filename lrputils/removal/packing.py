"""Any number of rows, run in batches of bounded size.

Rows of one length, whatever text they come from, are packed into batches of at most so many tokens.
What a row is, and how the model runs on a batch of them, is in `lrputils.removal.rows`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lrputils.model.architectures import Architecture
from lrputils.removal.packed import packed
from lrputils.removal.rows import Row, Text, collate, logits_of

# Tokens in one batch. Large enough to keep every core busy, small enough to stay in fast memory.
BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
# Rows this much shorter than the longest may join a batch that would otherwise be nearly empty.
_SHORTEST = 0.8


def by_length(texts: Sequence[str], batch_size: int) -> list[list[int]]:
    """Batches of text numbers, so that texts of similar length share one; the shortest first."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def evaluate(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    batch_tokens: int | None = None,
    done: Callable[[int], Any] = lambda rows: None,
    precision: str = "float32",
) -> Tensor:
    """Run the model on every row and return what `read` takes from the logits, in the rows' order.

    Args:
        architecture: of the model.
        texts: the texts that rows refer to.
        rows: what to evaluate.
        read: given logits (n, classes) and the numbers of the n rows' texts, returns (n, …).
        batch_tokens: most tokens in one batch. One row is run however long it is. Where memory
            runs out the budget is halved, for the remaining rows.
        done: told of the number of rows of each batch that is done.
        precision: of the products in linear layers: see `lrputils.removal.packed.packed`.

    Returns:
        (rows, …) on the model's device.

    Raises:
        ValueError: a budget below one token, or a value that is NaN or infinite.
    """
    device = next(architecture.model.parameters()).device
    budget = BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    budget = budget if batch_tokens is None else batch_tokens
    if budget < 1:
        raise ValueError(f"batch_tokens={batch_tokens} is not a positive number")
    order = sorted(range(len(rows)), key=lambda i: (rows[i].kind, -rows[i].length))
    result, start = None, 0
    tokens = sum(row.length for row in rows)
    with torch.inference_mode(), packed(architecture, tokens, precision):
        while start < len(order):
            numbers = _next_batch(rows, order, start, budget)
            batch = [rows[i] for i in numbers]
            logits = _attempt(architecture, texts, batch, device)
            if logits is None:
                budget = max(1, len(batch) * batch[0].length // 2)
                continue
            value = read(logits, torch.tensor([row.text for row in batch], device=device))
            if result is None:
                result = value.new_zeros(len(rows), *value.shape[1:])
            result[torch.tensor(numbers, device=device)] = value
            start += len(batch)
            done(len(batch))
    if result is None:
        return torch.zeros(0, device=device)
    _refuse_broken(architecture, rows, result)
    return result.clone()


def bar(progress: bool, **options: Any) -> tqdm:
    """Return a progress bar, drawn on a terminal alone; `options` are tqdm's.

    An explicit `disable=None` would do the same, but overrule the user's TQDM_DISABLE.
    """
    hidden = not progress or not sys.stderr.isatty()
    return tqdm(**options, **({"disable": True} if hidden else {}))


def _refuse_broken(architecture: Architecture, rows: Sequence[Row], result: Tensor) -> None:
    fine = torch.isfinite(result).reshape(len(rows), -1).all(1).tolist()
    broken = sorted({row.text for row, finite in zip(rows, fine, strict=True) if not finite})
    if broken:
        raise ValueError(
            f"{type(architecture.model).__name__} returns NaN or infinite logits on rows of the "
            f"texts {broken}. Check its weights, and its dtype (float16 overflows)"
        )


def _next_batch(rows: Sequence[Row], order: list[int], start: int, budget: int) -> list[int]:
    """Rows of one length up to the budget; somewhat shorter ones where few have that length."""
    first = rows[order[start]]
    fits = max(1, budget // first.length)
    shortest = first.length
    stop = start
    while stop < len(order) and stop - start < fits:
        row = rows[order[stop]]
        if row.kind != first.kind:
            break
        if row.length < shortest:
            if shortest == first.length and 4 * (stop - start) > fits:
                break
            shortest = row.length
            if row.length < _SHORTEST * first.length:
                break
        stop += 1
    return order[start:stop]


def _attempt(
    architecture: Architecture, texts: Sequence[Text], batch: list[Row], device: torch.device
) -> Tensor | None:
    """Return the batch's logits, or None where it was too large for the memory."""
    try:
        return logits_of(architecture, collate(architecture, texts, batch, device))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if len(batch) == 1 or not _is_out_of_memory(error):
            raise
    # Outside the handler: the exception would keep the batch's tensors alive.
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or (
        "not enough memory" in text or "can't allocate memory" in text
    )
