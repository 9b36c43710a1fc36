"""Shapley values of tokens, sampled or exact: what a token adds, over all that else is there.

    φ_i = mean over all orders of the tokens of f(those up to i) − f(those before i)

(Shapley, 1953; as attributions, Štrumbelj and Kononenko, 2010). Leave-one-out is the same
difference with all other tokens there; where two tokens carry the same evidence it is zero for
both, and the Shapley value gives half to each. f is the explained output, and tokens are removed as
in `lrputils.removal.leave_one_out` under the attention mask.

Orders are drawn in antithetic pairs, an order and its reverse (Mitchell et al., 2022, JMLR 23:43):
the mean of a pair is exact for every f whose tokens act alone and in pairs. The values of a short
text need no sample: f of all 2ⁿ sets of its n tokens gives them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.mistakes import whole_number
from lrputils.model.architectures import Handle
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import Coalitions
from lrputils.removal.rows import Text

ALL = "all"
# Units of a text whose sets are all tried: 65,536 rows.
LONGEST = 16


class Shapley(NamedTuple):
    """Shapley values of a batch.

    Attributes:
        scores: (batch, tokens), the means of `draws`, 0 at padding and at tokens that always stay.
        draws: (pairs, batch, tokens), the independent estimates of each antithetic pair of orders;
            (1, batch, tokens) where the values are exact.
        change: f(all tokens) − f(no token that can go), (batch,). Scores and every draw sum to it.
    """

    scores: Tensor
    draws: Tensor
    change: Tensor

    @property
    def errors(self) -> Tensor:
        """Standard errors of the scores, (batch, tokens): 0 where they are exact."""
        if len(self.draws) == 1:
            return torch.zeros_like(self.scores)
        return self.draws.std(0) / len(self.draws) ** 0.5


def shapley_values(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    units: str | Spans = "token",
    permutations: int | str = 32,
    seed: int = 0,
    output: str | None = None,
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Shapley:
    """Return the Shapley value of every token, word or sentence of every text, sampled or exact.

    Special tokens always stay, and get 0. Costs at most one forward pass, on half of the text on
    average, a unit and order; exact, one a set of units.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: a batch of encoded texts with their `special_tokens_mask`, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        units: what is removed at once, as in `leave_one_out`; the unit's value stands at its first
            token.
        permutations: orders drawn a text, an even number from 4 on; or "all", which gives exact
            values of texts of at most 16 units that can be removed.
        seed: of the orders. They depend on it and on the text alone, not on its batch.
        output: f: as in `leave_one_out`.
        batch_tokens: most tokens in one batch.
        progress: on a terminal, draw a bar once this takes some seconds.

    Raises:
        TypeError: the model is not covered.
        ValueError: an option out of range, inputs that do not say which tokens are special, or a
            text too long for all of its orders.
    """
    every = permutations == ALL
    if not every and (not isinstance(permutations, int) or permutations < 4 or permutations % 2):
        raise ValueError(f"permutations={permutations!r} is not an even number from 4 on")
    seed = whole_number("seed", seed, least=0)
    f = Coalitions(
        model,
        inputs,
        target=target,
        output=output,
        units=units,
        batch_tokens=batch_tokens,
    )
    counts = list(map(len, f.each()))
    for number, count in enumerate(counts):
        if every and count > LONGEST:
            raise ValueError(
                f"text {number} has {count} units, and so 2^{count} sets of them: with "
                f"permutations={ALL!r} at most {LONGEST}"
            )
    if every:
        sets = [[np.flatnonzero(~row) for row in _subsets(count)] for count in counts]
        draws = [_enumerated(own) for own in f.values(sets, "Shapley", progress=progress)]
    else:
        of_texts = zip(f.texts, counts, strict=True)
        orders = [_orders(text, count, int(permutations) // 2, seed) for text, count in of_texts]
        sets = [[row[size:] for row in own for size in range(len(row) + 1)] for own in orders]
        values = f.values(sets, "Shapley", progress=progress)
        draws = [_sampled(*of_text) for of_text in zip(values, orders, strict=True)]
    draws = torch.from_numpy(np.concatenate(draws, axis=1)).to(f.whole)
    draws = torch.stack([f.at_units(draw) for draw in draws])
    return Shapley(draws.mean(0), draws, draws[0].sum(-1))


def _orders(text: Text, count: int, pairs: int, seed: int) -> np.ndarray:
    """Some orders of a text's units, and their reverses behind those: (2 · pairs, units)."""
    known: Any = [] if text.ids is None else text.ids
    random = np.random.default_rng([seed, *known])
    ranks = random.permuted(np.tile(np.arange(count), (pairs, 1)), axis=1)
    return np.argsort(np.concatenate([ranks, count - 1 - ranks]), axis=1)


def _sampled(f: Tensor, orders: np.ndarray) -> np.ndarray:
    """Draws (pairs, units): what each unit adds to those before it, mean of order and reverse.

    `f`: without all that stands behind each prefix of each order.
    """
    gains = np.diff(f.double().cpu().numpy().reshape(len(orders), -1), axis=1)
    gains = np.take_along_axis(gains, np.argsort(orders, axis=1), axis=1)
    return gains.reshape(2, len(orders) // 2, orders.shape[1]).mean(0)


def _subsets(count: int) -> np.ndarray:
    """Which units are in each set, boolean (2^count, count): unit i where bit i of the row is."""
    return (np.arange(2**count)[:, None] >> np.arange(count) & 1).astype(bool)


def _enumerated(f: Tensor) -> np.ndarray:
    """φ_i = Σ_S (|S| − 1)! (n − |S|)! / n! (f(S) − f(S without i)), as one draw (1, units)."""
    of_set = f.double().cpu().numpy()
    codes = np.arange(len(of_set))
    count = len(of_set).bit_length() - 1
    here = _subsets(count)
    weight = np.array([0.0] + [1 / (size * comb(count, size)) for size in range(1, count + 1)])
    weight = weight[here.sum(1)]
    gains = np.zeros((1, count))
    for unit, inside in enumerate(here.T):
        with_it = codes[inside]
        gains[0, unit] = (of_set[with_it] - of_set[with_it - 2**unit]) @ weight[with_it]
    return gains
