"""Shapley values of tokens, sampled: what a token adds, averaged over what else is there.

    φ_i = mean over all orders of the tokens of f(those up to i) − f(those before i)

(Shapley, 1953; as attributions, Štrumbelj and Kononenko, 2010). Leave-one-out is the same
difference with all other tokens there; where two tokens carry the same evidence it is zero for
both, and the Shapley value gives half to each. f is the explained output, and tokens are removed as
in `lrputils.removal.leave_one_out` under the attention mask.

Orders are drawn in antithetic pairs, an order and its reverse (Mitchell et al., 2022, JMLR 23:43):
the mean of a pair is exact for every f whose tokens act alone and in pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.handles import Handle
from lrputils.model.readout import Target
from lrputils.removal.coalitions import coalition_rows, players_of, token_grid
from lrputils.removal.leave_one_out import start
from lrputils.removal.packing import bar, evaluate
from lrputils.removal.rows import Text

Array = np.ndarray


class Shapley(NamedTuple):
    """Sampled Shapley values of a batch.

    Attributes:
        scores: (batch, tokens), the means of `draws`, 0 at padding and at tokens that always stay.
        draws: (pairs, batch, tokens), the independent estimates of each antithetic pair of orders.
        change: f(all tokens) − f(no token that can go), (batch,). Scores and every draw sum to it.
    """

    scores: Tensor
    draws: Tensor
    change: Tensor

    @property
    def errors(self) -> Tensor:
        """Standard errors of the scores, (batch, tokens)."""
        return self.draws.std(0) / len(self.draws) ** 0.5

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of each score's interval by Student's t over the pairs, (batch, tokens) each."""
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence} is not between 0 and 1")
        reach = float(stats.t.ppf((1 + confidence) / 2, len(self.draws) - 1)) * self.errors
        return self.scores - reach, self.scores + reach


def shapley_values(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    permutations: int = 32,
    seed: int = 0,
    players: str = "content",
    output: str = "logit",
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Shapley:
    """Sample the Shapley value of every token of every text.

    Costs at most one forward pass, on half of the text on average, a token and order.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: a batch of encoded texts with their `special_tokens_mask`, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        permutations: orders drawn a text, an even number from 4 on.
        seed: of the orders. They depend on it and on the text alone, not on its batch.
        players: "content": special tokens always stay, and get 0; "all": they are removed too. The
            token that the head reads then keeps its own query, as under `leave_one_out`.
        output: f: "logit", "difference" or "probability", as in `leave_one_out`.
        batch_tokens: most tokens in one batch.
        progress: on a terminal, draw a bar once this takes some seconds.

    Raises:
        TypeError: the model is not covered.
        ValueError: an option out of range, inputs that do not say which tokens are special, or a
            text longer than the model's attention window.
    """
    check_permutations(permutations)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r} is not a whole number from 0 on")
    architecture = describe(model)
    texts, _, read = start(architecture, inputs, target, output, batch_tokens)
    who, grid = players_of(architecture, inputs, texts, players), token_grid(inputs, texts)
    rows, plans = [], []
    for number, (text, own) in enumerate(zip(texts, who, strict=True)):
        ranks = _ranks(text, len(own), permutations // 2, seed)
        removed, of_prefix = _prefixes(ranks, own, len(text))
        plans.append((ranks, of_prefix + len(rows)))
        rows += coalition_rows(architecture, number, text, removed)
    with bar(progress, total=len(rows), desc="Shapley", unit="row", delay=3, leave=False) as shown:
        values = evaluate(
            architecture, texts, rows, read, batch_tokens=batch_tokens, done=shown.update
        )
    found = values.double().cpu().numpy()
    draws, change = np.zeros((permutations // 2, *grid.shape)), np.zeros(len(texts))
    for number, (ranks, of_prefix) in enumerate(plans):
        f = found[of_prefix]  # (orders, players + 1)
        gains = np.take_along_axis(np.diff(f, axis=1), ranks, axis=1)
        own = np.flatnonzero(grid[number])[who[number]]
        draws[:, number, own] = gains.reshape(2, -1, len(own)).mean(0)
        change[number] = f[0, -1] - f[0, 0]
    draws, change = (torch.from_numpy(each).to(values) for each in (draws, change))
    return Shapley(draws.mean(0), draws, change)


def check_permutations(permutations: int) -> None:
    """Raise ValueError unless this many orders are whole pairs, and enough for an error."""
    if not isinstance(permutations, int) or permutations < 4 or permutations % 2:
        raise ValueError(f"permutations={permutations!r} is not an even number from 4 on")


def _ranks(text: Text, count: int, pairs: int, seed: int) -> Array:
    """Each player's rank in each order, (2 pairs, players): the orders, then their reverses."""
    known = [] if text.ids is None else text.ids
    random = np.random.default_rng([seed, *known])
    ranks = random.permuted(np.tile(np.arange(count), (pairs, 1)), axis=1)
    return np.concatenate([ranks, count - 1 - ranks])


def _prefixes(ranks: Array, own: Array, tokens: int) -> tuple[Array, Array]:
    """What is removed from each different prefix, (sets, tokens), and each order's sets.

    The latter is (orders, players + 1): the number of the set that holds the first 0, 1, … players.
    """
    orders, count = ranks.shape
    behind = ranks[:, None] >= np.arange(count + 1)[:, None]
    sets, number = np.unique(behind.reshape(-1, count), axis=0, return_inverse=True)
    removed = np.zeros((len(sets), tokens), bool)
    removed[:, own] = sets
    return removed, number.reshape(orders, count + 1)
