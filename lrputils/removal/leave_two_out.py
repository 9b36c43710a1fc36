"""Leave-two-out: what a pair of tokens does that neither does alone.

    I_ij = LOO_ij − LOO_i − LOO_j

LOO_ij is the loss when both tokens are removed together. I_ij is positive where the two are
redundant, each standing in for the other, and negative where each needs the other. To second order
a token's Shapley value is LOO_i + ½ Σ_j I_ij, exactly so where no three tokens act together
(Grabisch and Roubens, 1999, for the general index).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.handles import Handle
from lrputils.model.targets import Target
from lrputils.removal.coalitions import coalition_rows, players_of, token_grid
from lrputils.removal.leave_one_out import start
from lrputils.removal.packing import bar, evaluate

Pairs = Sequence[Iterable[tuple[int, int]]]


class LeaveTwoOut(NamedTuple):
    """Interactions of pairs, and the leave-one-out scores of the same passes.

    Attributes:
        interactions: I_ij, (batch, tokens, tokens), symmetric; NaN where a pair was not asked for.
        loo: LOO_i, (batch, tokens), as `leave_one_out` under the attention mask.
    """

    interactions: Tensor
    loo: Tensor


def leave_two_out(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    pairs: Pairs | None = None,
    target: Target = None,
    output: str = "logit",
    batch_tokens: int | None = None,
    progress: bool = True,
) -> LeaveTwoOut:
    """Remove tokens in pairs, exactly: one forward pass a pair and one a token.

    Args:
        pairs: for each text the pairs (i, j) of columns to remove; all pairs of tokens that are not
            special if not given, which needs the inputs' `special_tokens_mask`.
        output: "logit", "difference" or "probability", as in `leave_one_out`.
        batch_tokens: most tokens in one batch.
        progress: on a terminal, draw a bar once this takes some seconds.

    Raises:
        TypeError: the model is not covered.
        ValueError: pairs that are not two different tokens of their text or not one list a text, an
            unknown option, or a text longer than the model's attention window.
    """
    architecture = describe(model, rules=False)
    texts, full, read = start(architecture, inputs, target, output, batch_tokens)
    grid = token_grid(inputs, texts)
    where = [np.flatnonzero(row) for row in grid]
    if pairs is None:
        who = players_of(architecture, inputs, texts, "content")
        pairs = [
            combinations(place[own].tolist(), 2) for place, own in zip(where, who, strict=True)
        ]
    chosen = _checked(pairs, where)
    rows = []
    for number, (text, own) in enumerate(zip(texts, chosen, strict=True)):
        removed = np.zeros((len(text) + len(own), len(text)), bool)
        removed[np.arange(len(text)), np.arange(len(text))] = True
        removed[np.arange(len(text), len(removed))[:, None], own] = True
        rows += coalition_rows(architecture, number, text, removed)
    with bar(progress, total=len(rows), desc="pairs", unit="row", delay=3, leave=False) as shown:
        without = evaluate(
            architecture, texts, rows, read, batch_tokens=batch_tokens, done=shown.update
        )
    losses = full[[row.text for row in rows]] - without
    loo = full.new_zeros(grid.shape)
    interactions = full.new_full((*grid.shape, grid.shape[1]), torch.nan)
    counts = [len(text) + len(own) for text, own in zip(texts, chosen, strict=True)]
    for number, (own, lost) in enumerate(zip(chosen, losses.split(counts), strict=True)):
        single, both = lost.split([len(texts[number]), len(own)])
        loo[number, where[number]] = single
        i, j = where[number][own].T
        interactions[number, i, j] = both - single[own[:, 0]] - single[own[:, 1]]
        interactions[number, j, i] = interactions[number, i, j]
    return LeaveTwoOut(interactions, loo)


def _checked(pairs: Pairs, where: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The pairs as numbers of tokens in their text, (pairs, 2) a text."""
    pairs = [np.asarray(list(own), dtype=np.int64).reshape(-1, 2) for own in pairs]
    if len(pairs) != len(where):
        raise ValueError(
            f"pairs of {len(pairs)} texts, but there are {len(where)}: one list a text"
        )
    for number, (own, places) in enumerate(zip(pairs, where, strict=True)):
        bad = own[~np.isin(own, places).all(1) | (own[:, 0] == own[:, 1])]
        if len(bad):
            raise ValueError(
                f"pair {tuple(bad[0].tolist())} of text {number} is not two different tokens of "
                f"it: its columns are {places[0]} to {places[-1]}"
            )
    return [np.searchsorted(places, own) for places, own in zip(where, pairs, strict=True)]
