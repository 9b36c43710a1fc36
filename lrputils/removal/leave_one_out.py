"""Exact leave-one-out and leave-two-out: the change of the output when tokens are removed.

Nothing is approximated. Each token, or pair, costs one row of a batch, and
`lrputils.removal.packing` runs the rows of all texts together, a decoder's from the removed token
on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Handle
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import Coalitions, units_of


def leave_one_out(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    units: str | Spans = "token",
    removal: str = "attention-mask",
    output: str | None = None,
    per_token: bool = False,
    batch_tokens: int | None = None,
    progress: bool = True,
) -> Tensor:
    """f(x) − f(x without token i), for every token, word or sentence of every text.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: a batch of encoded texts (or `pixel_values`, whose tokens are [CLS] and patches).
        target: the class explained, by number or label, one for all texts or one a text, or a
            `lrputils.contrast` of two; by default the class that is predicted on the whole input.
            For a next-token model, the token that follows; for texts with an answer see `output`.
        units: what is removed at once: each "token", "word", "sentence" or "message", or spans of
            characters of one's own (see `Inputs.units`). Special tokens are units of "token" alone.
        removal: what happens to the token, or to each token of the unit:
            "attention-mask": no query may look at it. The other tokens keep their positions. The
            token that the head reads ([CLS], or a decoder's last; before an answer, the prompt's
            last) keeps its own query and residual stream; a decoder's only token then attends to
            nothing.
            "mask", "pad", "unk": another token replaces it (see `Inputs.replacements`).
            "zero": its word embedding is zero; position and type stay.
            "delete": it is deleted and the tokens behind it move up by one position.
            A decoder reads its answer at the last token of what is left, whatever that is; a model
            without known parts, which would take it for padding, is refused.
            The texts so made have the positions that the model itself counts for them: a token that
            takes none, as RoBERTa's padding, takes none here.
        output: f, the "logit" of the target; the "difference" from the logit of the class that
            comes next on the whole input; or the "probability" of the target (by a sigmoid
            where the model's labels do not exclude each other). The default is "logit". Of an
            answer Σ_t over its tokens, each behind the prompt and the tokens before it, of its
            "log-probability", which is the default, "logit", or "contrast": the logit less the
            largest of all others. The answer itself stays.
        per_token: score each token of the answer by itself; their sum is the map.
        batch_tokens: most tokens in one batch; the default suits the device. Where memory does not
            suffice it is halved.
        progress: on a terminal, draw a bar with rate and time left once this takes some seconds.

    Returns:
        (batch, tokens) on the inputs' device, 0 at padding and at answers; float32, for a float64
        model float64. A unit's score stands at its first token (`inputs.units(units).mask`), with 0
        at the others. With `per_token` (batch, tokens of the longest answer, tokens).

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option or unit, a target that is no class of the model, or a removal
            that the model or the inputs do not have.
    """
    f = Coalitions(
        model,
        inputs,
        target=target,
        output=output,
        units=units,
        special=True,
        per_token=per_token,
        batch_tokens=batch_tokens,
    )
    without = f.values(f.each(), "LOO", removal=removal, progress=progress)
    losses = [full - left for full, left in zip(f.whole, without, strict=True)]
    return f.at_units(torch.cat(losses)).movedim(1, -1)


class LeaveTwoOut(NamedTuple):
    """Interactions of pairs, and the leave-one-out scores of the same passes.

    Attributes:
        interactions: I_ij, (batch, tokens, tokens), symmetric; NaN but for pairs of tokens that are
            not special, or of units.
        loo: LOO_i, (batch, tokens), as `leave_one_out` under the attention mask.
    """

    interactions: Tensor
    loo: Tensor


def leave_two_out(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    units: str | Spans = "token",
    target: Target = None,
    output: str | None = None,
    batch_tokens: int | None = None,
    progress: bool = True,
) -> LeaveTwoOut:
    """What a pair of tokens does that neither does alone, exactly: one pass a pair, one a token.

        I_ij = LOO_ij − LOO_i − LOO_j

    LOO_ij is the loss when both are removed together. I_ij is positive where the two are redundant,
    each standing in for the other, and negative where each needs the other. To second order a
    token's Shapley value is LOO_i + ½ Σ_j I_ij, exactly so where no three tokens act together
    (Grabisch and Roubens, 1999, for the general index).

    Args:
        units: what is removed at once, as in `leave_one_out`.
        output: as in `leave_one_out`.
        batch_tokens: most tokens in one batch.
        progress: on a terminal, draw a bar once this takes some seconds.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option, or inputs that do not say which tokens are special.
    """
    f = Coalitions(
        model,
        inputs,
        target=target,
        output=output,
        units=units,
        special=True,
        batch_tokens=batch_tokens,
    )
    content = units_of(f.architecture, inputs, f.texts, units)[1]
    sets, pairs = [], []
    for alone, inside, where in zip(f.each(), content, f.where, strict=True):
        free = inside[where].nonzero()[:, 0].cpu().numpy()
        pairs.append(free[np.array(np.triu_indices(len(free), 1))])
        sets.append([*alone, *pairs[-1].T])
    loo = f.whole.new_zeros(f.where.shape)
    interactions = f.whole.new_full((*f.where.shape, f.where.shape[1]), torch.nan)
    for number, left in enumerate(f.values(sets, "pairs", progress=progress)):
        columns, losses = f.where[number].nonzero()[:, 0], f.whole[number] - left
        one, two = torch.from_numpy(pairs[number])
        loo[number, columns] = alone = losses[: len(columns)]
        extra = losses[len(columns) :] - alone[one] - alone[two]
        interactions[number, columns[one], columns[two]] = extra
        interactions[number, columns[two], columns[one]] = extra
    return LeaveTwoOut(interactions, loo)
