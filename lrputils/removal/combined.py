"""One open pass and half-removal as one estimate: their mean, plain or by fitted coefficients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Calibration(NamedTuple):
    """How one open pass and half-removal add up: what `lrputils.calibrate` returns.

    Attributes:
        coefficients: of the two maps and of their absolute values, see `at_one_size`.
        groups: of half-removal.
        texts: how many it was fitted on.
    """

    coefficients: tuple[float, float, float, float]
    groups: int
    texts: int


def plain(groups: int) -> tuple[float, float, float, float]:
    """The coefficients of the mean: two groups weigh as much as the open row, four twice as much.

    With more groups, fewer tokens are gone where a token's gradient is taken.
    """
    weight = groups / 2
    return 1 / (1 + weight), weight / (1 + weight), 0.0, 0.0


def at_one_size(whole: Tensor, grouped: Tensor, where: Tensor, groups: int) -> Tensor:
    """Both maps and their absolute values at the size of their mean: (batch, tokens, 4).

    Each is divided by its mean absolute score over the tokens of `where`. The size in logits, the
    weighted harmonic mean of the two, makes `plain` a mean with weights that a large map loses: on
    a text where one estimate runs away, the other one counts.
    """
    first, second, *_ = plain(groups)
    count = where.sum(1, keepdim=True).clamp(min=1)
    small = torch.finfo(whole.dtype).tiny ** 0.5
    one, two = ((x.abs() * where).sum(1, keepdim=True) / count for x in (whole, grouped))
    one, two = one.clamp(min=small), two.clamp(min=small)
    size = 1 / (first / one + second / two)
    whole, grouped = whole * (size / one), grouped * (size / two)
    return torch.stack([whole, grouped, whole.abs(), grouped.abs()], dim=-1)
