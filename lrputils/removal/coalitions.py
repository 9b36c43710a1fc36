"""Texts of which any set of units is left: what Shapley values, pairs and curves are made of.

A unit is a set of tokens that go at once, by default a single token. What is not in the set is
hidden by the attention mask, as in `lrputils.removal.leave_one_out`: deleted while the others keep
their positions. The token that the head reads stays in the row; where it is not in the set its key
alone is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Architecture
from lrputils.model.inputs import Inputs, special_tokens, to_the_left
from lrputils.model.units import Spans
from lrputils.removal.rows import Row, Text, window


def removed_at_once(
    architecture: Architecture,
    inputs: Mapping[str, Any],
    texts: Sequence[Text],
    units: str | Spans = "token",
    *,
    special: bool = False,
) -> tuple[list[list[np.ndarray]], Tensor]:
    """Return the sets of tokens that go at once, and where their scores stand.

    The sets are numbers of tokens in their text; the other is boolean (batch, columns), on the
    inputs' device. Special tokens (of an image, [CLS]) are units of "token" alone, and only if
    `special`; ValueError where they matter and the inputs do not say which they are.
    """
    if architecture.vision:
        if units != "token":
            raise ValueError(f"units={units!r} are of texts; patches of an image are its tokens")
        where = torch.ones(len(texts), len(texts[0]), dtype=torch.bool)
        where[:, 0] = special
        numbers = where.cumsum(1) - 1
        where = where.to(inputs["pixel_values"].device)
        valid = np.ones(numbers.shape, bool)
    elif units == "token":
        given = inputs.get("attention_mask")
        valid = torch.ones_like(inputs["input_ids"]) if given is None else given
        where = valid.bool() if special else valid.bool() & ~special_tokens(inputs)
        numbers, valid = where.cumsum(1) - 1, valid.bool().cpu().numpy()
    else:
        found = Inputs.of(to_the_left(inputs)).units(units)
        numbers, where = found.numbers, found.mask
        valid = inputs["attention_mask"].bool().cpu().numpy()
    own = torch.where(where, numbers, -1) if units == "token" else numbers
    rows = zip(own.cpu().numpy(), valid, strict=True)
    return [_sets(row[here]) for row, here in rows], where


def _sets(numbers: np.ndarray) -> list[np.ndarray]:
    """The tokens of each unit; `numbers` rise from token to token, but for −1."""
    inside = np.flatnonzero(numbers >= 0)
    ends = np.flatnonzero(np.diff(numbers[inside])) + 1
    return np.split(inside, ends) if len(inside) else []


def coalition_rows(
    architecture: Architecture, number: int, text: Text, removed: np.ndarray
) -> list[Row]:
    """Return a row for each set of tokens that is removed, boolean (sets, tokens), from a text.

    Raises:
        ValueError: the text is longer than the model's attention window, where deleting a token
            would pull others into it.
    """
    if len(text) > (limit := window(architecture)):
        raise ValueError(
            f"text {number} has {len(text)} tokens, and each token of this model sees {limit}: "
            "several tokens can be removed from shorter texts only"
        )
    head = int(architecture.head_tokens(torch.ones(1, len(text))))
    rows = []
    for gone in removed:
        kept = np.flatnonzero(~gone | (np.arange(len(text)) == head))
        hidden = int(np.searchsorted(kept, head)) if gone[head] else None
        rows.append(Row(number, len(kept), partial(np.copy, kept), hidden=hidden))
    return rows
