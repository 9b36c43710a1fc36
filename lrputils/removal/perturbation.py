"""Perturbation curves: the output while tokens are removed, most or least relevant first.

Tokens are removed cumulatively, one chunk after the other, in the order of their scores; the others
keep their positions. The curves of all methods on all texts share one batch, whose rows shrink
with every step. The effect of a single token is in `lrputils.removal.leave_one_out`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lrputils.model.architectures import Handle, describe
from lrputils.model.readout import Target
from lrputils.model.units import Spans
from lrputils.removal.coalitions import removed_at_once
from lrputils.removal.leave_one_out import start
from lrputils.removal.packing import evaluate
from lrputils.removal.rows import Row

ORDERS = ("morf", "lerf")
CHUNK_SCORES = ("sum", "mean")


class Perturbation(NamedTuple):
    """Means of each text's two curves, (batch,) or (methods, batch), and their difference.

    `lerf`: least relevant first, higher is better; `morf`: most relevant first, lower is better;
    `delta`: `lerf − morf`.
    """

    lerf: Tensor
    morf: Tensor
    delta: Tensor


def perturbation_curve(
    model: Handle,
    inputs: Mapping[str, Any],
    scores: Tensor,
    order: str = "morf",
    chunk: int = 1,
    *,
    units: str | Spans = "token",
    chunk_score: str = "sum",
    target: Target = None,
    output: str = "logit",
    batch_tokens: int | None = None,
) -> Tensor:
    """Return the output of the predicted class after 0, 1, 2, … chunks of tokens are taken out.

    Point 0 is the whole text. Each step deletes one chunk of the text's own tokens, for good; the
    tokens that stay keep their positions, which for an encoder equals masking the deleted ones.
    Special tokens always stay, so the last point is the empty text, `[CLS] [SEP]`, the same for
    every method and order. A decoder is read at the last token that is left; where it has no
    special token the empty text does not exist, and the last point is NaN. Of an image, the patches
    go and [CLS] stays.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: encoded texts that know their special tokens (`clf.encode`), or `pixel_values`.
        scores: (batch, tokens), or (methods, batch, tokens) for several methods at once.
        order: "morf" removes the most relevant chunk first, "lerf" the least relevant. Of equal
            scores the one further to the left is removed first.
        chunk: how many contiguous tokens are removed at once, from the text's first; the last chunk
            may be shorter. The paper takes 1 on SST and 16 on IMDB.
        units: what counts as a token here, as in `leave_one_out`: whole words or sentences are
            removed, by the scores at their first tokens.
        chunk_score: a chunk's "sum" of scores, or their "mean".
        target: the class followed; by default the one predicted on the whole input.
        output: "logit", "difference" or "probability", as in `leave_one_out`.
        batch_tokens: most tokens in one batch.

    Returns:
        (batch, steps + 1), or (methods, batch, steps + 1), on the model's device; NaN past the end
        of a row's own steps.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown option, or scores of another shape or not finite at some token.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is not one of {ORDERS}")
    return _curves(
        model, inputs, scores, (order,), chunk, units, chunk_score, target, output, batch_tokens
    )[0]


class Curves(NamedTuple):
    """The curves of most and of least relevant first: a batch's, or one text's as arrays."""

    morf: Tensor | np.ndarray
    lerf: Tensor | np.ndarray


def perturbation_curves(
    model: Handle, inputs: Mapping[str, Any], scores: Tensor, chunk: int = 1, **options: Any
) -> Curves:
    """Return both curves, run together. Arguments and errors are those of `perturbation_curve`."""
    return Curves(*_curves(model, inputs, scores, ORDERS, chunk, **options))


def perturbation_scores(
    model: Handle, inputs: Mapping[str, Any], scores: Tensor, chunk: int = 1, **options: Any
) -> Perturbation:
    """LeRF, MoRF and their difference Δ of each text, both curves run together.

    Each is `curve_mean` of its curve. Arguments and errors are those of `perturbation_curve`.
    """
    both = perturbation_curves(model, inputs, scores, chunk, **options)
    morf, lerf = map(curve_mean, both)
    return Perturbation(lerf, morf, lerf - morf)


def curve_mean(curves: Tensor) -> Tensor:
    """Mean of a curve's points, both endpoints included: (…, steps + 1) → (…).

    (1/(n+1)) Σ_{k=0}^{n} f(x⁽ᵏ⁾), where x⁽⁰⁾ is the whole text and x⁽ⁿ⁾ the empty one; points that
    are NaN, past a row's end, do not count. The paper's printed LeRF and MoRF read as this number.
    """
    return curves.nanmean(dim=-1)


def aopc(curves: Tensor, steps: int | None = None) -> Tensor:
    """Area over the perturbation curve of Samek et al. (2017): (…, steps + 1) → (…).

    (1/(L+1)) Σ_{k=0}^{L} (f(x⁽⁰⁾) − f(x⁽ᵏ⁾)) with L = `steps`, by default all of a row's own. The
    whole text's output is taken off, so unlike `curve_mean` it says how much is lost, not what is
    left; both rank methods alike on the same texts.
    """
    if steps is not None and not 0 < steps < curves.shape[-1]:
        raise ValueError(f"steps={steps} is not between 1 and {curves.shape[-1] - 1}")
    curves = curves if steps is None else curves[..., : steps + 1]
    return curves[..., 0] - curve_mean(curves)


def _curves(
    model: Handle,
    inputs: Mapping[str, Any],
    scores: Tensor,
    orders: Sequence[str],
    chunk: int,
    units: str | Spans = "token",
    chunk_score: str = "sum",
    target: Target = None,
    output: str = "logit",
    batch_tokens: int | None = None,
) -> Tensor:
    """Curves (orders, [methods,] batch, steps + 1)."""
    architecture = describe(model, rules=False)
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk={chunk!r} is not a positive number of tokens")
    if chunk_score not in CHUNK_SCORES:
        raise ValueError(f"chunk_score={chunk_score!r} is not one of {CHUNK_SCORES}")
    texts, whole, read = start(architecture, inputs, target, output, batch_tokens)
    sets, where = removed_at_once(architecture, inputs, texts, units)
    maps = _as_maps(scores, where.cpu().numpy())
    steps = np.array([-(-len(own) // chunk) for own in sets])
    plan = _Plan([], [], [])
    for number, (text, own) in enumerate(zip(texts, sets, strict=True)):
        of_units = maps[:, number, where[number].cpu().numpy()]
        gone_at = {
            (o, method): _removal_steps(each, own, len(text), order, chunk, chunk_score)
            for o, order in enumerate(orders)
            for method, each in enumerate(of_units)
        }
        plan.add(number, gone_at, steps[number])
    values = evaluate(architecture, texts, plan.rows, read, batch_tokens=batch_tokens)
    curves = whole.new_full((len(orders), len(maps), len(texts), steps.max() + 1), torch.nan)
    curves[..., 0] = whole
    if plan.rows:
        points = torch.tensor(plan.points, device=whole.device)
        curves[tuple(points.T)] = values[torch.tensor(plan.row_of_point, device=whole.device)]
    return curves if torch.as_tensor(scores).dim() == 3 else curves[:, 0]


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


class _Plan(NamedTuple):
    """What to evaluate: the rows, and for each point (order, method, text, step) its row."""

    rows: list[Row]
    points: list[tuple[int, int, int, int]]
    row_of_point: list[int]

    def add(self, text: int, gone_at: Mapping[tuple[int, int], np.ndarray], steps: int) -> None:
        """Plan a text's points but the first; curves that leave the same tokens share a row.

        `gone_at`: (order, method) → the step that removes each token, (tokens,).
        """
        known: dict[bytes, int] = {}
        for (order, method), gone in gone_at.items():
            for step in range(1, steps + 1):
                left = gone > step
                if not left.any():
                    continue
                number = known.setdefault(left.tobytes(), len(self.rows))
                if number == len(self.rows):
                    self.rows.append(Row(text, int(left.sum()), partial(_left, gone, step)))
                self.points.append((order, method, text, step))
                self.row_of_point.append(number)


def _removal_steps(
    scores: np.ndarray,
    own: Sequence[np.ndarray],
    tokens: int,
    order: str,
    chunk: int,
    chunk_score: str,
) -> np.ndarray:
    """The step, from 1, that removes each of a text's `tokens`; none for those of no unit.

    `own` are the tokens of each unit, `scores` the units', in their order.
    """
    gone_at = np.full(tokens, np.iinfo(np.int64).max)
    if not len(own):
        return gone_at
    starts = np.arange(0, len(own), chunk)
    totals = np.add.reduceat(scores, starts)
    if chunk_score == "mean":
        totals = totals / np.diff([*starts, len(own)])
    ranking = np.argsort(-totals if order == "morf" else totals, kind="stable")
    step_of_chunk = np.empty(len(starts), dtype=np.int64)
    step_of_chunk[ranking] = np.arange(1, len(starts) + 1)
    for unit, gone in enumerate(own):
        gone_at[gone] = step_of_chunk[unit // chunk]
    return gone_at


def _left(gone_at: np.ndarray, step: int) -> np.ndarray:
    return np.flatnonzero(gone_at > step)
