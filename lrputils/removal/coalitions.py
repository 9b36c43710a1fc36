"""Texts of which any set of tokens is left: what Shapley values and pairs of tokens are made of.

A token that is not in the set is hidden by the attention mask, as in
`lrputils.removal.leave_one_out`: deleted while the others keep their positions. The token that the
head reads stays in the row; where it is not in the set its key alone is hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from lrputils.model.architectures import Architecture
from lrputils.model.inputs import special_tokens
from lrputils.removal.rows import Row, Text, window

PLAYERS = ("content", "all")


def token_grid(inputs: Mapping[str, Any], texts: Sequence[Text]) -> np.ndarray:
    """Return where the padded batch holds a token, boolean (batch, columns)."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return np.ones((len(texts), len(texts[0])), bool)
    return mask.bool().cpu().numpy()


def players_of(
    architecture: Architecture, inputs: Mapping[str, Any], texts: Sequence[Text], which: str
) -> list[np.ndarray]:
    """Return the tokens of each text that may be removed, in order, by their number in the text.

    "content" leaves special tokens (of an image, [CLS]) in place, "all" does not; ValueError for
    another choice, and for inputs that do not say which tokens are special.
    """
    if which not in PLAYERS:
        raise ValueError(f"players={which!r} is not one of {PLAYERS}")
    if which == "all":
        return [np.arange(len(text)) for text in texts]
    if architecture.vision:
        return [np.arange(1, len(text)) for text in texts]
    special, grid = special_tokens(inputs).cpu().numpy(), token_grid(inputs, texts)
    return [np.flatnonzero(~row[own]) for row, own in zip(special, grid, strict=True)]


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
