"""Agreement between attribution maps, and how sure it is.

Every correlation is computed per example and in float64, over the tokens that `where` marks. A map
that is constant there, or has fewer than two tokens, has no correlation: it gets NaN, never 0.
Nothing here knows what the scores are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import ArrayLike

Array = np.ndarray
# Below this share of the map's largest magnitude, its spread is rounding of a constant map.
_CONSTANT = 1e-12


def pearson(scores: ArrayLike, reference: ArrayLike, where: ArrayLike | None = None) -> Array:
    """Pearson's r of each example's two maps.

    Args:
        scores: (batch, tokens), tensor or array; (tokens,) is one example.
        reference: the same shape.
        where: boolean of the same shape, the tokens to compare; all of them by default.

    Returns:
        float64 (batch,): NaN where a map is constant over the tokens compared, or holds fewer
        than two of them.

    Raises:
        ValueError: shapes differ, or a compared score is not finite (its row and token are named).
    """
    left, right, mask = _paired(scores, reference, where)
    return _correlation(left, right, mask)


def spearman(scores: ArrayLike, reference: ArrayLike, where: ArrayLike | None = None) -> Array:
    """Spearman's rank correlation of each example's two maps; ties share their mean rank.

    Arguments, result and errors as in `pearson`.
    """
    left, right, mask = _paired(scores, reference, where)
    return _correlation(_ranks(left, mask), _ranks(right, mask), mask)


def kendall(scores: ArrayLike, reference: ArrayLike, where: ArrayLike | None = None) -> Array:
    """Kendall's τ-b (corrected for ties) of each example's two maps.

    Arguments, result and errors as in `pearson`.
    """
    left, right, mask = _paired(scores, reference, where)
    tau = np.full(len(left), np.nan)
    for row, tokens in enumerate(mask):
        x, y = left[row, tokens], right[row, tokens]
        if len(x) > 1 and np.ptp(x) > 0 and np.ptp(y) > 0:
            tau[row] = scipy.stats.kendalltau(x, y).statistic
    return tau


class Normalized(NamedTuple):
    """Maps divided by their sums.

    Attributes:
        scores: float64 (batch, tokens); NaN where a row's sum is zero, 0 outside `where`.
        flipped: boolean (batch,), true where the sum was negative: the division turned every
            sign of that map round, and with it the sign of its correlation.
        flipped_share: the share of maps with a negative sum.
    """

    scores: Array
    flipped: Array
    flipped_share: float


def sum_to_one(scores: ArrayLike, where: ArrayLike | None = None) -> Normalized:
    """Divide each map by its sum over the tokens of `where`, as the paper does before comparing.

    Pearson's r needs no such step: dividing by a positive sum leaves it as it is, and dividing by
    a negative one flips its sign.
    """
    values, _, mask = _paired(scores, scores, where)
    values = np.where(mask, values, 0.0)
    total = values.sum(axis=1, keepdims=True)
    safe = np.where(total == 0, 1.0, total)
    normalized = np.where(mask & (total == 0), np.nan, values / safe)
    flipped = total[:, 0] < 0
    return Normalized(normalized, flipped, float(flipped.mean()))


class Interval(NamedTuple):
    """A bootstrap interval; `estimate` gives it together with the statistic and the counts."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A statistic with its bootstrap interval and the number of examples behind it.

    Attributes:
        value: the statistic over the `used` examples.
        low: lower end of the interval.
        high: upper end of the interval.
        used: how many examples entered.
        dropped: how many were NaN and left out.
    """

    value: float
    low: float
    high: float
    used: int
    dropped: int


def bootstrap_interval(
    values: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    statistic: Callable[..., Array] = np.mean,
) -> Interval:
    """Percentile bootstrap interval of a statistic over examples.

    Args:
        values: (examples,); NaN examples are left out.
        confidence: coverage aimed at.
        resamples: number of bootstrap samples.
        seed: of the random draws; the same seed gives the same interval.
        statistic: takes an array and `axis`, as `numpy.mean` and `numpy.median` do.

    Raises:
        ValueError: fewer than two examples are left, or an argument is out of range.
    """
    kept = _finite(values)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not between 0 and 1")
    if resamples < 1:
        raise ValueError(f"resamples={resamples} is not a positive number")
    if len(kept) < 2:
        raise ValueError(
            f"An interval needs two examples or more; of {np.size(values)} values "
            f"{len(kept)} are not NaN"
        )
    drawn = np.concatenate([statistic(part, axis=1) for part in _resampled(kept, resamples, seed)])
    tail = (1 - confidence) / 2
    return Interval(*map(float, np.quantile(drawn, [tail, 1 - tail])))


def estimate(
    values: ArrayLike, *, statistic: Callable[..., Array] = np.mean, **options
) -> Estimate:
    """Return a statistic with its `bootstrap_interval` and the counts behind it.

    The interval's ends are NaN where fewer than two examples are left, the statistic itself where
    there is none. `options` are those of `bootstrap_interval`.
    """
    kept, low, high, value = _finite(values), np.nan, np.nan, np.nan
    if len(kept) > 1:
        low, high = bootstrap_interval(kept, statistic=statistic, **options)
    if len(kept):
        value = float(statistic(kept[None], axis=1)[0])
    return Estimate(value, low, high, len(kept), int(np.size(values)) - len(kept))


def estimates(columns: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return the mean of each column with its bootstrap interval, as `table` of estimates.

    `options` are those of `bootstrap_interval`.
    """
    return table({name: estimate(columns[name], **options) for name in columns})


def table(found: Mapping[Any, Estimate]) -> pd.DataFrame:
    """Return estimates as a table: a row each, the fields of `Estimate` as columns."""
    frame = pd.DataFrame(list(found.values()), columns=Estimate._fields)
    return frame.set_axis(pd.Index(list(found)), axis=0)


def paired_difference(first: ArrayLike, second: ArrayLike, **options: Any) -> Estimate:
    """Return the mean of `first − second` over examples that have both, with its interval.

    Pairing takes out what the examples share, so the interval is far narrower than the two
    separate ones suggest. `options` are those of `bootstrap_interval`.
    """
    left, right = _as_float(first, "first"), _as_float(second, "second")
    if left.shape != right.shape:
        raise ValueError(f"Paired values differ in shape: {left.shape} and {right.shape}")
    return estimate(left - right, **options)


def ratio_of_means(first: ArrayLike, second: ArrayLike, **options: Any) -> Estimate:
    """Return mean(first) / mean(second) over examples that have both, with its interval.

    Examples are resampled as pairs. Where the second mean may be zero the ratio has no sense, and
    an interval of enormous width says so. `options` are `confidence`, `resamples` and `seed` of
    `bootstrap_interval`.
    """
    left, right = _as_float(first, "first"), _as_float(second, "second")
    if left.shape != right.shape:
        raise ValueError(f"Paired values differ in shape: {left.shape} and {right.shape}")
    pairs = np.stack([left.ravel(), right.ravel()], axis=1)
    kept = pairs[~np.isnan(pairs).any(axis=1)]

    def ratio(drawn: Array, axis: int) -> Array:
        first_mean, second_mean = kept[drawn.astype(int)].mean(axis=axis).T
        with np.errstate(divide="ignore", invalid="ignore"):  # 0 / 0 is NaN, and says so
            return first_mean / second_mean

    value = estimate(np.arange(len(kept)), statistic=ratio, **options)
    return value._replace(dropped=len(pairs) - len(kept))


def _as_float(values: ArrayLike, name: str) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        raise ValueError(f"`{name}` is a single number, not a map")
    return array


def _paired(
    scores: ArrayLike, reference: ArrayLike, where: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Return both maps as float64 (batch, tokens) and the mask; check shapes and values."""
    left = np.atleast_2d(_as_float(scores, "scores"))
    right = np.atleast_2d(_as_float(reference, "reference"))
    if isinstance(where, torch.Tensor):
        where = where.cpu().numpy()
    mask = np.ones_like(left, bool) if where is None else np.atleast_2d(np.asarray(where, bool))
    if not left.shape == right.shape == mask.shape or left.ndim != 2:
        raise ValueError(
            f"Shapes differ: scores {left.shape}, reference {right.shape}, where {mask.shape}; "
            f"all are (batch, tokens)"
        )
    for name, values in (("scores", left), ("reference", right)):
        bad = mask & ~np.isfinite(values)
        if bad.any():
            row, token = np.argwhere(bad)[0]
            raise ValueError(f"`{name}` is {values[row, token]} at row {row}, token {token}")
    return left, right, mask


def _correlation(left: Array, right: Array, mask: Array) -> Array:
    count = mask.sum(axis=1)
    x, x_norm, x_constant = _centred(left, mask, count)
    y, y_norm, y_constant = _centred(right, mask, count)
    defined = (count > 1) & ~x_constant & ~y_constant
    scale = np.where(defined, x_norm * y_norm, 1.0)
    r = np.clip((x * y).sum(axis=1) / scale, -1.0, 1.0)
    return np.where(defined, r, np.nan)


def _centred(values: Array, mask: Array, count: Array) -> tuple[Array, Array, Array]:
    """Return each row less its mean, scaled to size one; its norm; and whether it is constant."""
    values = np.where(mask, values, 0.0)
    largest = np.abs(values).max(axis=1, keepdims=True, initial=0.0)
    values = values / np.where(largest == 0, 1.0, largest)
    mean = values.sum(axis=1, keepdims=True) / np.maximum(count, 1)[:, None]
    centred = np.where(mask, values - mean, 0.0)
    norm = np.sqrt((centred**2).sum(axis=1))
    return centred, norm, norm <= _CONSTANT * np.sqrt(np.maximum(count, 1))


def _ranks(values: Array, mask: Array) -> Array:
    return scipy.stats.rankdata(np.where(mask, values, np.inf), axis=1, method="average")


def _finite(values: ArrayLike) -> Array:
    array = _as_float(values, "values").ravel()
    return array[~np.isnan(array)]


def _resampled(values: Array, resamples: int, seed: int, cells: int = 4_000_000) -> Iterator[Array]:
    """Yield bootstrap samples as (samples, examples) arrays of bounded size."""
    generator = np.random.default_rng(seed)
    step = max(1, cells // len(values))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        yield values[generator.integers(0, len(values), size=(rows, len(values)))]
