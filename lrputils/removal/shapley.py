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

from collections.abc import Callable, Mapping
from math import comb
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from lrputils.model.architectures import Handle, describe
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import coalition_rows, removed_at_once
from lrputils.removal.leave_one_out import start
from lrputils.removal.packing import bar, evaluate
from lrputils.removal.rows import Text

Array = np.ndarray
ALL = "all"
PLAYERS = ("content", "all")
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

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Ends of each score's interval by Student's t over the pairs, (batch, tokens) each."""
        if not 0 < confidence < 1:
            raise ValueError(f"confidence={confidence} is not between 0 and 1")
        freedom = max(1, len(self.draws) - 1)
        reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * self.errors
        return self.scores - reach, self.scores + reach


def shapley_values(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    units: str | Spans = "token",
    permutations: int | str = 32,
    seed: int = 0,
    players: str = "content",
    output: str = "logit",
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Shapley:
    """Return the Shapley value of every token, word or sentence of every text, sampled or exact.

    Costs at most one forward pass, on half of the text on average, a unit and order; exact, one a
    set of units.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: a batch of encoded texts with their `special_tokens_mask`, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        units: what is removed at once, as in `leave_one_out`; the unit's value stands at its first
            token.
        permutations: orders drawn a text, an even number from 4 on; or "all", which gives exact
            values of texts of at most 16 units that can be removed.
        seed: of the orders. They depend on it and on the text alone, not on its batch.
        players: "content": special tokens always stay, and get 0; "all": they are removed too. The
            token that the head reads then keeps its own query, as under `leave_one_out`.
        output: f: "logit", "difference" or "probability", as in `leave_one_out`.
        batch_tokens: most tokens in one batch.
        progress: on a terminal, draw a bar once this takes some seconds.

    Raises:
        TypeError: the model is not covered.
        ValueError: an option out of range, inputs that do not say which tokens are special, a text
            longer than the model's attention window, or too long for all of its orders.
    """
    check_permutations(permutations)
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r} is not a whole number from 0 on")
    architecture = describe(model, rules=False)
    texts, _, read = start(architecture, inputs, target, output, batch_tokens)
    if players not in PLAYERS:
        raise ValueError(f"players={players!r} is not one of {PLAYERS}")
    special = players == "all" and units == "token"
    who, where = removed_at_once(architecture, inputs, texts, units, special=special)
    rows, designs = [], []
    for number, (text, own) in enumerate(zip(texts, who, strict=True)):
        if permutations == ALL:
            removed, draws_of = _enumerated(number, own, len(text))
        else:
            removed, draws_of = _sampled(text, own, permutations // 2, seed)
        designs.append((slice(len(rows), len(rows) + len(removed)), draws_of))
        rows += coalition_rows(architecture, number, text, removed)
    with bar(progress, total=len(rows), desc="Shapley", unit="row", delay=3, leave=False) as shown:
        values = evaluate(
            architecture, texts, rows, read, batch_tokens=batch_tokens, done=shown.update
        )
    found = values.double().cpu().numpy()
    draws = np.zeros((1 if permutations == ALL else permutations // 2, *where.shape))
    for number, (sets, draws_of) in enumerate(designs):
        draws[:, number, where[number].cpu().numpy()] = draws_of(found[sets])
    draws = torch.from_numpy(draws).to(values)
    return Shapley(draws.mean(0), draws, draws[0].sum(-1))


def check_permutations(permutations: int | str) -> None:
    """Raise ValueError unless they are all orders, or whole pairs and enough for an error."""
    if permutations == ALL:
        return
    if not isinstance(permutations, int) or permutations < 4 or permutations % 2:
        raise ValueError(f"permutations={permutations!r} is not an even number from 4 on")


def _ranks(text: Text, count: int, pairs: int, seed: int) -> Array:
    """Each player's rank in each order, (2 pairs, players): the orders, then their reverses."""
    known = [] if text.ids is None else text.ids
    random = np.random.default_rng([seed, *known])
    ranks = random.permuted(np.tile(np.arange(count), (pairs, 1)), axis=1)
    return np.concatenate([ranks, count - 1 - ranks])


def _sampled(text: Text, own: list[Array], pairs: int, seed: int) -> tuple[Array, Callable]:
    """What is removed from each prefix of the orders, (sets, tokens), and the draws from f there.

    The latter is a function of f of each set, (sets,), and returns (pairs, players).
    """
    ranks = _ranks(text, len(own), pairs, seed)
    orders, count = ranks.shape
    behind = ranks[:, None] >= np.arange(count + 1)[:, None]
    sets, number = np.unique(behind.reshape(-1, count), axis=0, return_inverse=True)
    removed = _of_tokens(sets, own, len(text))

    def draws_of(f: Array) -> Array:
        along = f[number.reshape(orders, count + 1)]
        gains = np.take_along_axis(np.diff(along, axis=1), ranks, axis=1)
        return gains.reshape(2, -1, count).mean(0)

    return removed, draws_of


def _of_tokens(sets: Array, own: list[Array], tokens: int) -> Array:
    """Sets of units, boolean (sets, units), as sets of tokens, (sets, tokens)."""
    removed = np.zeros((len(sets), tokens), bool)
    if own:
        removed[:, np.concatenate(own)] = np.repeat(sets, list(map(len, own)), axis=1)
    return removed


def _enumerated(number: int, own: list[Array], tokens: int) -> tuple[Array, Callable]:
    """`_sampled` over every set: φ_i = Σ_S (|S| − 1)! (n − |S|)! / n! (f(S) − f(S without i))."""
    count = len(own)
    if count > LONGEST:
        raise ValueError(
            f"text {number} has {count} units, and so 2^{count} sets of them: with "
            f"permutations={ALL!r} at most {LONGEST}"
        )
    codes = np.arange(2**count)
    here = (codes[:, None] >> np.arange(count) & 1).astype(bool)
    removed = _of_tokens(~here, own, tokens)
    weight = np.array([0.0] + [1 / (size * comb(count, size)) for size in range(1, count + 1)])

    def draws_of(f: Array) -> Array:
        with_i = [codes[here[:, i]] for i in range(count)]
        gains = [f[sets] - f[sets - 2**i] for i, sets in enumerate(with_i)]
        sizes = (here[sets].sum(1) for sets in with_i)
        return np.array([[gain @ weight[size] for gain, size in zip(gains, sizes, strict=True)]])

    return removed, draws_of
