"""Perturbation curves: the output while tokens are removed, most or least relevant first.

Tokens are removed cumulatively, one chunk after the other, in the order of their scores; the others
keep their positions. The curves of all methods on all texts share one batch, whose rows shrink
with every step. The effect of a single token is in `lrputils.removal.leave_one_out`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.mistakes import whole_number
from lrputils.model.architectures import Handle
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import Coalitions


class Curves(NamedTuple):
    """The curves of most and of least relevant first: a batch's, or one text's as arrays."""

    morf: Tensor | np.ndarray
    lerf: Tensor | np.ndarray


def perturbation_curves(
    model: Handle,
    inputs: Mapping[str, Any],
    scores: Tensor,
    chunk: int = 1,
    *,
    units: str | Spans = "token",
    removal: str = "attention-mask",
    target: Target = None,
    output: str | None = None,
    batch_tokens: int | None = None,
) -> Curves:
    """Return the output of the predicted class after 0, 1, 2, … chunks of tokens are taken out.

    `morf` removes the chunk of the largest sum of scores first, `lerf` that of the least; of equal
    ones the one further to the left goes first. Point 0 is the whole text. Each step deletes one
    chunk of the text's own tokens, for good; the tokens that stay keep their positions, which for
    an encoder equals masking the deleted ones. Special tokens always stay, so the last point is the
    empty text, `[CLS] [SEP]`, the same for every method and order. A decoder is read at the last
    token that is left; where it has no special token the empty text does not exist, and the last
    point is NaN. Of an image, the patches go and [CLS] stays.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: encoded texts that know their special tokens (`clf.encode`), or `pixel_values`.
        scores: (batch, tokens), or (methods, batch, tokens) for several methods at once.
        chunk: how many contiguous tokens are removed at once, from the text's first; the last chunk
            may be shorter. The paper takes 1 on SST and 16 on IMDB.
        units: what counts as a token here, as in `leave_one_out`: whole words or sentences are
            removed, by the scores at their first tokens.
        removal: what takes tokens out, as in `leave_one_out`.
        target: the class followed; by default the one predicted on the whole input.
        output: as in `leave_one_out`.
        batch_tokens: most tokens in one batch.

    Returns:
        Each (batch, steps + 1), or (methods, batch, steps + 1), on the model's device; NaN past the
        end of a row's own steps.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option, or scores of another shape or not finite at some token.
    """
    chunk = whole_number("chunk", chunk)
    f = Coalitions(
        model,
        inputs,
        target=target,
        output=output,
        units=units,
        batch_tokens=batch_tokens,
    )
    where = f.where.cpu().numpy()
    maps = _as_maps(scores, where)
    plans = [_sets(own, maps[:, i, where[i]], chunk) for i, own in enumerate(f.units)]
    values = f.values(plans, "curves", progress=False, removal=removal, head_stays=False)
    points = max(-(-len(own) // chunk) for own in f.each()) + 1
    curves = f.whole.new_full((2, len(maps), len(where), points), torch.nan)
    for number, of_text in enumerate(values):
        of_text = of_text.reshape(2, len(maps), -1)
        curves[:, :, number, : of_text.shape[-1]] = of_text
    return Curves(*(curves if torch.as_tensor(scores).dim() == 3 else curves[:, 0]))


def _sets(own: np.ndarray, maps: np.ndarray, chunk: int) -> list[np.ndarray]:
    """The units gone after each step, from none on, for most and for least relevant first.

    `own`: the unit of each token, −1 for none; `maps`, (methods, units). Where every token is of a
    unit, the last step, which leaves nothing, is left out.
    """
    starts = np.arange(0, maps.shape[1], chunk)
    totals = np.add.reduceat(maps, starts, axis=1) if len(starts) else maps
    rankings = np.argsort(np.concatenate([-totals, totals]), axis=1, kind="stable")
    places = np.argsort(rankings, axis=1).repeat(chunk, axis=1)[:, : maps.shape[1]]
    points = len(starts) + bool((own < 0).any())
    return [np.flatnonzero(place < step) for place in places for step in range(points)]


def curve_mean(curves: Tensor) -> Tensor:
    """Mean of a curve's points, both endpoints included: (…, steps + 1) → (…).

    (1/(n+1)) Σ_{k=0}^{n} f(x⁽ᵏ⁾), where x⁽⁰⁾ is the whole text and x⁽ⁿ⁾ the empty one; points that
    are NaN, past a row's end, do not count. The paper's printed LeRF and MoRF read as this number.
    """
    return curves.nanmean(dim=-1)


def _as_maps(scores: Tensor, content: np.ndarray) -> np.ndarray:
    maps = torch.as_tensor(scores).detach().to("cpu", torch.float64).numpy()
    maps = maps[None] if maps.ndim == 2 else maps
    if maps.ndim != 3 or maps.shape[1:] != content.shape:
        raise ValueError(
            f"scores have shape {tuple(np.shape(scores))}; the inputs are {content.shape} (batch, "
            f"tokens), with the methods before that if there are several"
        )
    bad = np.argwhere(~np.isfinite(maps) & content)
    if len(bad):
        method, text, token = bad[0]
        raise ValueError(f"The score of text {text}, token {token} is {maps[method, text, token]}")
    return maps
