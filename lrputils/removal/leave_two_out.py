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

from lrputils.model.architectures import Handle, describe
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import removed_at_once
from lrputils.removal.leave_one_out import removed_rows, start
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
    units: str | Spans = "token",
    target: Target = None,
    output: str = "logit",
    batch_tokens: int | None = None,
    progress: bool = True,
) -> LeaveTwoOut:
    """Remove tokens in pairs, exactly: one forward pass a pair and one a token.

    Args:
        pairs: for each text the pairs (i, j) of columns to remove, of units those of their first
            tokens; all pairs of tokens that are not special, or of units, if not given, which needs
            the inputs' `special_tokens_mask`.
        units: what is removed at once, as in `leave_one_out`.
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
    single, where = removed_at_once(architecture, inputs, texts, units, special=units == "token")
    where = where.cpu().numpy()
    places = [np.flatnonzero(row) for row in where]
    if pairs is None:
        _, content = removed_at_once(architecture, inputs, texts, units)
        pairs = [combinations(np.flatnonzero(row), 2) for row in content.cpu().numpy()]
    chosen = _checked(pairs, places)
    sets = [
        [*own, *(np.sort(np.concatenate([own[i], own[j]])) for i, j in both)]
        for own, both in zip(single, chosen, strict=True)
    ]
    rows = list(removed_rows(architecture, texts, sets, "attention-mask", inputs))
    with bar(progress, total=len(rows), desc="pairs", unit="row", delay=3, leave=False) as shown:
        without = evaluate(
            architecture, texts, rows, read, batch_tokens=batch_tokens, done=shown.update
        )
    losses = full[[row.text for row in rows]] - without
    loo = full.new_zeros(where.shape)
    interactions = full.new_full((*where.shape, where.shape[1]), torch.nan)
    for number, lost in enumerate(losses.split(list(map(len, sets)))):
        alone, both = lost.split([len(single[number]), len(chosen[number])])
        loo[number, places[number]] = alone
        one, two = chosen[number].T
        i, j = places[number][chosen[number]].T
        interactions[number, i, j] = both - alone[one] - alone[two]
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
