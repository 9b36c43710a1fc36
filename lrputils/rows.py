"""Many texts with tokens taken out, evaluated in batches of bounded size.

A `Row` says which tokens of which text are left; `evaluate` packs rows of equal length into batches
of at most so many tokens, whatever text they come from, and runs the model on them. A token taken
out is deleted while the others keep their positions: for every query that is left this is the same
as masking its key, needs no mask, and shortens the row. Where deletion is not the same, a row
names the key to mask instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrputils.architectures import Architecture
from lrputils.forwards import replaced

# Tokens in one batch. Large enough to keep every core busy, small enough to stay in fast memory.
BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}
# Rows this much shorter than the longest may join a batch that would otherwise be nearly empty.
_SHORTEST = 0.8


@dataclass(frozen=True)
class Text:
    """One text without padding: integer arrays (tokens,); for an image, one vector per patch."""

    ids: np.ndarray | None
    positions: np.ndarray
    types: np.ndarray | None = None
    states: Tensor | None = None

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Row:
    """What is left of one text.

    Attributes:
        text: number of the text.
        length: how many tokens are left.
        kept: returns their indices in the text, in order; called when the row's batch is built,
            so that the rows of a long text are never all in memory.
        hidden: index in the row of a token that no query may see, though its own query stays.
        swapped: index in the row of a token that another one replaces.
        swap_id: the token that replaces it; None for a word embedding of zeros.
        shifted: count positions anew, as if the text had been written without the other tokens.
    """

    text: int
    length: int
    kept: Callable[[], np.ndarray]
    hidden: int | None = None
    swapped: int | None = None
    swap_id: int | None = None
    shifted: bool = False

    @property
    def kind(self) -> tuple[bool, bool]:
        """Rows of one kind can share a batch."""
        return self.hidden is not None, self.swapped is not None and self.swap_id is None


def whole(texts: Sequence[Text]) -> list[Row]:
    """The rows from which nothing is taken."""
    return [Row(i, len(text), every(len(text))) for i, text in enumerate(texts)]


def every(length: int) -> Callable[[], np.ndarray]:
    """`Row.kept` of a row that keeps all of its text's tokens."""
    return lambda: np.arange(length)


def split(architecture: Architecture, inputs: Mapping[str, Any]) -> list[Text]:
    """Take a padded batch apart into its texts.

    Raises:
        ValueError: what `Architecture.arguments` refuses, or a model in training mode, where
            dropout would drown the effect of a single token.
    """
    if architecture.model.training:
        raise ValueError(
            "The model is in training mode, where dropout is random: call model.eval()"
        )
    arguments = architecture.arguments(inputs)
    if architecture.vision:
        with torch.no_grad():
            states = architecture.word_embeddings(arguments["pixel_values"])
        return [Text(None, np.arange(len(state)), states=state) for state in states]
    mask = arguments["attention_mask"].bool().cpu()
    positions = arguments.get("position_ids")
    if positions is None:
        positions = architecture.position_ids(arguments["input_ids"], arguments["attention_mask"])
    columns = [arguments["input_ids"], positions, arguments.get("token_type_ids")]
    arrays = [None if c is None else c.expand(mask.shape).cpu() for c in columns]
    return [
        Text(*(None if array is None else array[row][mask[row]].numpy() for array in arrays))
        for row in range(len(mask))
    ]


def evaluate(
    architecture: Architecture,
    texts: Sequence[Text],
    rows: Sequence[Row],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    batch_tokens: int | None = None,
) -> Tensor:
    """Run the model on every row and return what `read` takes from the logits, in the rows' order.

    Args:
        architecture: of the model.
        texts: the texts that rows refer to.
        rows: what to evaluate.
        read: given logits (n, classes) and the numbers of the n rows' texts, returns (n, …).
        batch_tokens: most tokens in one batch. One row is run however long it is. Where memory does
            not suffice the budget is halved, for the rest of the rows.

    Returns:
        (rows, …) on the model's device.
    """
    device = next(architecture.model.parameters()).device
    budget = batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])
    if budget < 1:
        raise ValueError(f"batch_tokens={batch_tokens} is not a positive number")
    order = sorted(range(len(rows)), key=lambda i: (rows[i].kind, -rows[i].length))
    result, start = None, 0
    with torch.inference_mode():
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
    return result.clone() if result is not None else torch.zeros(0, device=device)


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
        return _logits(architecture, _collate(architecture, texts, batch, device))
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


@dataclass(frozen=True)
class _Batch:
    """Rows as tensors, padded on the right; `last` is the index of each row's last token."""

    arguments: dict[str, Tensor]
    last: Tensor
    states: Tensor | None = None


def _collate(
    architecture: Architecture, texts: Sequence[Text], batch: list[Row], device: torch.device
) -> _Batch:
    width = max(row.length for row in batch)
    lengths = np.array([row.length for row in batch])
    mask = np.arange(width) < lengths[:, None]
    kept = np.zeros((len(batch), width), dtype=np.int64)
    for i, row in enumerate(batch):
        kept[i, : row.length] = row.kept()
    hidden = [i for i, row in enumerate(batch) if row.hidden is not None]
    visible = mask.copy()
    visible[hidden, [batch[i].hidden for i in hidden]] = False

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    arguments = {}
    # A decoder without a mask takes a gap in the positions for the start of another text.
    if architecture.causal or not visible.all():
        arguments["attention_mask"] = put(visible.astype(np.int64))
    last = put(lengths - 1)
    if architecture.vision:
        states = torch.stack([texts[row.text].states[put(kept[i])] for i, row in enumerate(batch)])
        return _Batch(arguments, last, states)
    arguments |= _token_arguments(architecture, texts, batch, kept, put)
    return _Batch(arguments, last)


def _token_arguments(
    architecture: Architecture,
    texts: Sequence[Text],
    batch: list[Row],
    kept: np.ndarray,
    put: Callable[[np.ndarray], Tensor],
) -> dict[str, Tensor]:
    ids, positions, types = (np.empty_like(kept) for _ in range(3))
    for i, row in enumerate(batch):
        text = texts[row.text]
        ids[i] = text.ids[kept[i]]
        positions[i] = text.positions[kept[i]]
        if row.shifted:
            positions[i, : row.length] = text.positions[: row.length]
        if text.types is not None:
            types[i] = text.types[kept[i]]
        if row.swapped is not None and row.swap_id is not None:
            ids[i, row.swapped] = row.swap_id
    arguments = {"position_ids": put(positions)}
    if texts[batch[0].text].types is not None:
        arguments["token_type_ids"] = put(types)
    if not batch[0].kind[1]:
        return arguments | {"input_ids": put(ids)}
    embedded = architecture.word_embeddings(put(ids))
    rows = torch.arange(len(batch), device=embedded.device)
    embedded[rows, put(np.array([row.swapped for row in batch]))] = 0
    return arguments | {"inputs_embeds": embedded}


def _logits(architecture: Architecture, batch: _Batch) -> Tensor:
    """Logits (rows, classes), in float32 at least; a decoder's are read at its last token."""
    model = architecture.model
    if architecture.vision:
        logits = _image_logits(architecture, batch)
    elif not architecture.causal:
        logits = model(**batch.arguments).logits
    else:
        # Only the last token's state goes through the head: a vocabulary for each token of each
        # row would be most of the memory.
        states = architecture.backbone(**batch.arguments, use_cache=False)[0]
        rows = torch.arange(len(batch.last), device=states.device)
        logits = _decoder_head(architecture)(states[rows, batch.last])
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _decoder_head(architecture: Architecture) -> nn.Module:
    model = architecture.model
    return model.get_output_embeddings() if architecture.language_model else model.score


def _image_logits(architecture: Architecture, batch: _Batch) -> Tensor:
    with _embeddings_are(architecture, batch.states):
        pixels = batch.states.new_zeros(len(batch.states), 0)
        return architecture.model(pixel_values=pixels, **batch.arguments).logits


@contextmanager
def _embeddings_are(architecture: Architecture, states: Tensor) -> Iterator[None]:
    """Let the embedding module of an image model return `states`."""
    forwards = {architecture.word_embeddings: lambda original, *args, **kwargs: states}
    with replaced(forwards):
        yield
