"""Agreement between attribution maps, and its uncertainty.

Every correlation is computed per example and in float64, over the tokens that `where` marks. A map
that is constant there, or has fewer than two tokens, has no correlation: it gets NaN, never 0.
(scipy's `pearsonr` has no mask, hence the correlation here.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
import torch
from numpy.typing import ArrayLike
from scipy.special import betaincinv, stdtrit

Array = np.ndarray
CORRELATION = (-1.0, 1.0)
# Below this share of the map's largest magnitude, its spread is rounding of a constant map.
CONSTANT = 1e-12
# How many resamples are drawn, and values of them held in memory at once.
_RESAMPLES, _CELLS = 10_000, 4_000_000


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
    maps = np.where(mask, [left, right], np.inf)  # last, outside `where`
    left, right = scipy.stats.rankdata(maps, axis=2)
    return _correlation(left, right, mask)


def sum_to_one(scores: ArrayLike, where: ArrayLike | None = None) -> Array:
    """Divide each map by its sum over the tokens of `where`, as the paper does before comparing.

    Pearson's r needs no such step: dividing by a positive sum leaves it as it is, and dividing by
    a negative one flips every sign of that map, and with it the sign of its correlation.

    Returns:
        float64 (batch, tokens); NaN where a row's sum is zero, 0 outside `where`.
    """
    values, _, mask = _paired(scores, scores, where)
    values = np.where(mask, values, 0.0)
    total = values.sum(axis=1, keepdims=True)
    return np.where(mask & (total == 0), np.nan, values / np.where(total == 0, 1.0, total))


class Estimate(NamedTuple):
    """A statistic with its interval; `used` examples entered, `dropped` ones were NaN."""

    value: float
    low: float
    high: float
    used: int
    dropped: int


class Difference(NamedTuple):
    """A mean paired difference as an `Estimate`, and what a few examples cannot make.

    `share` is that of the examples in which the first is ahead, with the ends of its exact
    interval; `lead` is 1 where the first leads, −1 where the second does, 0 where that cannot be
    told: see `leads`.
    """

    value: float
    low: float
    high: float
    used: int
    dropped: int
    share: float
    share_low: float
    share_high: float
    median: float
    lead: int


def t_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[Any, Any]:
    """Student's interval of each column's mean: the one interval of every paired difference.

    What two methods share in a text cancels in a difference, and no bootstrap covered the truth as
    often. Skewed differences it covers less: what follows from it is in `leads`.

    Args:
        values: (…, examples, columns) or (examples,); NaN examples are left out, column by column.
        confidence: nominal coverage.

    Returns:
        float64 ends (…, columns), NaN where a column has fewer than two examples.
    """
    values = _as_float(values, "values")
    values = values[:, None] if (flat := values.ndim == 1) else values
    known = ~np.isnan(values)
    count = known.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(known, values, 0.0).sum(axis=-2) / count
        square = np.where(known, values - mean[..., None, :], 0.0) ** 2
        error = np.sqrt(square.sum(axis=-2) / (count - 1) / count)
        reach = stdtrit(count - 1, 0.5 + confidence / 2) * error
    low, high = mean - reach, mean + reach
    return (float(low[0]), float(high[0])) if flat else (low, high)


def _share_interval(values: ArrayLike, confidence: float = 0.95) -> tuple[Array, Array, Array]:
    """The share of each column's examples above zero, with Clopper and Pearson's interval (1934).

    It is exact, whatever the distribution. Zeros count on neither side, as in a sign test.

    Args:
        values: (…, examples, columns); NaN examples are left out, column by column.
        confidence: nominal coverage, or more.

    Returns:
        float64 shares and ends (…, columns); NaN where no example is left.
    """
    values = _as_float(values, "values")
    above, below = (values > 0).sum(axis=-2), (values < 0).sum(axis=-2)
    tail = (1 - confidence) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        share = above / (above + below)
        low = np.where(above, betaincinv(above, below + 1, tail), 0 * share)
        high = np.where(below, betaincinv(above + 1, below, 1 - tail), 1 + 0 * share)
    return share, low, high


def leads(values: ArrayLike, confidence: float = 0.95, *, doubt: float = 1.0) -> Array:
    """Which side of paired differences leads: 1 above zero, −1 below, 0 if that cannot be told.

    Asked are the mean and the share of examples: Student's interval leaves zero, the exact one
    leaves one half. And the mean's does so with one example more, `doubt` on the other side. For
    n examples say nothing of what happens in fewer than 1 of n, and where one method fails rarely
    and badly, most samples of its differences look clear and are wrong.

    Args:
        values: (…, examples, columns) or (examples,); NaN examples are left out.
        confidence: of the intervals.
        doubt: what one unseen example may be worth. Of correlations 1: one map is the reference,
            the other has nothing to do with it. 0 for no such example.

    Returns:
        integers (…, columns).
    """
    values = _as_float(values, "values")
    values = values[:, None] if (flat := values.ndim == 1) else values
    side = np.sign(np.nansum(values, axis=-2, keepdims=True))
    along = side * values
    clear = t_interval(along, confidence)[0] > 0
    clear &= _share_interval(along, confidence)[1] > 0.5
    if doubt:
        unseen = np.full_like(side, -doubt)
        clear &= t_interval(np.concatenate([along, unseen], axis=-2), confidence)[0] > 0
    found = (side.squeeze(-2) * clear).astype(int)
    return found[0] if flat else found


def bootstrap_interval(values: ArrayLike, **options: Any) -> tuple[float, float]:
    """Interval of a statistic over examples, by default of their mean; options as in `estimate`.

    Raises:
        ValueError: fewer than two examples are left, or an argument is out of range.
    """
    found = estimate(values, **options)
    if found.used < 2:
        raise ValueError(
            f"An interval needs two examples or more; of {np.size(values)} values {found.used} "
            f"are not NaN"
        )
    return found.low, found.high


def estimate(
    values: ArrayLike,
    *paired: ArrayLike,
    statistic: Callable[..., Array] = np.mean,
    confidence: float = 0.95,
    method: str | None = None,
    within: tuple[float, float] = (-np.inf, np.inf),
) -> Estimate:
    """Return a statistic of examples, by default their mean, with its interval, and their counts.

    Correlations of texts are skewed to the left: a sample seldom holds the texts that pull their
    mean down, and a percentile interval of it lies too high. Hall (1992) corrects Student's for the
    skewness of the sample. Of the recorded correlations it covered most; it draws nothing.

    Args:
        values: (examples,); NaN examples are left out. Booleans are a share.
        paired: samples that go to `statistic` too: their examples are drawn together, and left out
            where one of them is NaN.
        statistic: a function of an array and `axis`, as `numpy.mean` and `numpy.median` do.
        confidence: nominal coverage.
        method: "hall", "t" (Student) or "wilson" (of a share: zeros and ones alone), all of a mean;
            "percentile" of a bootstrap, of any statistic. By default a share gets "wilson", another
            mean "hall", and another statistic "percentile".
        within: what the statistic can be, where the interval ends: that of a mean correlation of a
            few texts may pass 1, where the truth cannot lie.

    Returns:
        The interval's ends are NaN where fewer than two examples are left, the statistic itself
        where there is none.

    Raises:
        ValueError: an argument is out of range.
    """
    samples = np.stack([_as_float(sample, "values").ravel() for sample in (values, *paired)])
    kept = samples[:, ~np.isnan(samples).any(axis=0)]
    used, given = kept.shape[1], samples.shape[1]
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not between 0 and 1")
    method = method or _usual_method(values, statistic)
    if method != "percentile" and (method not in _OF_MEAN or statistic is not np.mean):
        names = ", ".join(_OF_MEAN)
        raise ValueError(f"method={method!r} is not percentile, nor one of a mean: {names}")
    value: float = np.nan
    ends: tuple[Any, Any] = (np.nan, np.nan)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # 0 / 0 is NaN
        if used:
            value = float(statistic(*kept, axis=-1))
        if used > 1 and method == "percentile":
            drawn = _resampled(kept, statistic)
            low, high = np.nanquantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2])
            ends = low, high
        elif used > 1:
            ends = _OF_MEAN[method](kept[0], confidence)
    low, high = (float(end) for end in np.clip(ends, *within))
    return Estimate(value, low, high, used, given - used)


def _usual_method(values: ArrayLike, statistic: Callable[..., Array]) -> str:
    if statistic is not np.mean:
        return "percentile"
    # Not by the values: a correlation may be exactly one.
    dtype = values.dtype if hasattr(values, "dtype") else np.asarray(values).dtype
    return "wilson" if dtype in (bool, torch.bool) else "hall"


def _resampled(samples: Array, statistic: Callable[..., Array]) -> Array:
    """The statistic of resamples: examples are drawn together in all samples."""
    how = {"n_resamples": _RESAMPLES, "batch": max(1, _CELLS // samples.shape[1]), "rng": 0}
    how |= {"paired": True, "vectorized": True, "method": "percentile"}
    return scipy.stats.bootstrap(samples, statistic, **how).bootstrap_distribution


def _hall(values: Array, confidence: float) -> tuple[Array, Array]:
    """Student's interval, corrected for skewness by a cubic that is monotone (Hall, 1992)."""
    count, mean, spread = len(values), values.mean(), values.std()
    if not spread:
        return mean, mean
    bent = ((values - mean) ** 3).mean() / spread**3 / count**0.5
    t = stdtrit(count - 1, 0.5 + np.array([-confidence, confidence]) / 2)
    if abs(bent) > 1e-6:
        t = 3 / bent * (np.cbrt(1 + bent * (t - bent / 6)) - 1)
    high, low = mean - t * values.std(ddof=1) / count**0.5
    return low, high


def _wilson(values: Array, confidence: float) -> tuple[Array, Array]:
    """Wilson's score interval of a share (1927)."""
    count = len(values)
    test = scipy.stats.binomtest(round(values.sum()), count)
    return test.proportion_ci(confidence, method="wilson")


_OF_MEAN = {"hall": _hall, "t": t_interval, "wilson": _wilson}


def estimates(columns: pd.DataFrame, **options: Any) -> pd.DataFrame:
    """Return the mean of each column with its interval, as `table` of estimates.

    `options` are those of `estimate`.
    """
    return table({name: estimate(columns[name], **options) for name in columns})


def table(found: Mapping[Any, Estimate | Difference]) -> pd.DataFrame:
    """Return estimates, or differences, as a table: a row each, their fields as columns."""
    rows = [one._asdict() for one in found.values()]
    return pd.DataFrame(rows, columns=None if rows else Estimate._fields, index=pd.Index([*found]))


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    doubt: float = 1.0,
    **options: Any,
) -> Difference:
    """Return the mean of `first − second` over examples that have both, with its interval.

    Pairing takes out what the examples share, so the interval, Student's (`t_interval`), is far
    narrower than the two separate ones suggest. `doubt` is that of `leads`, `options` are those of
    `estimate`.
    """
    gaps = np.subtract(*_pairs(first, second)).ravel()
    options = {"method": "t", "confidence": confidence, **options}
    share, low, high = (float(x[0]) for x in _share_interval(gaps[:, None], confidence))
    known = gaps[~np.isnan(gaps)]
    median = float(np.median(known)) if known.size else np.nan
    lead = int(leads(gaps, confidence, doubt=doubt))
    return Difference(*estimate(gaps, **options), share, low, high, median, lead)


def ratio_of_means(first: ArrayLike, second: ArrayLike, **options: Any) -> Estimate:
    """Return mean(first) / mean(second) over examples that have both, with its interval.

    Examples are resampled as pairs. Where the second mean may be zero the ratio is meaningless,
    and its interval enormously wide. `options` are those of `estimate`.
    """

    def _ratio(left: Array, right: Array, axis: int) -> Array:
        return left.mean(axis=axis) / right.mean(axis=axis)

    return estimate(*_pairs(first, second), statistic=_ratio, **options)


def _pairs(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    left, right = _as_float(first, "first"), _as_float(second, "second")
    if left.shape != right.shape:
        raise ValueError(f"Paired values differ in shape: {left.shape} and {right.shape}")
    return left, right


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
    given = np.ones_like(left) if where is None else _as_float(where, "where")
    mask = np.atleast_2d(given).astype(bool)
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
    ours, theirs = (unit(centred(maps, mask)) for maps in (left, right))
    return np.clip((ours * theirs).sum(axis=-1), -1.0, 1.0)


def centred(maps: Array, where: Array | None = None) -> Array:
    """Scale maps (…, tokens) to a largest size of one, and take their means off, over `where`."""
    where = np.ones_like(maps, dtype=bool) if where is None else where
    maps = np.where(where, maps, 0.0)
    largest = np.abs(maps).max(axis=-1, keepdims=True, initial=0.0)
    maps = maps / np.where(largest == 0, 1.0, largest)
    count = np.maximum(where.sum(axis=-1, keepdims=True), 1)
    return np.where(where, maps - maps.sum(axis=-1, keepdims=True) / count, 0.0)


def unit(maps: Array) -> Array:
    """Divide maps (…, tokens), of a size about one, by their norms: a product of two is their r.

    NaN where only rounding is left of a map.
    """
    norm = np.sqrt((maps**2).sum(axis=-1, keepdims=True))
    return maps / np.where(norm > CONSTANT * np.sqrt(maps.shape[-1]), norm, np.nan)


def sum_signs(maps: ArrayLike, where: ArrayLike | None = None) -> Array:
    """Return the sign (batch,) of each map's sum over `where`; NaN where it is zero.

    Dividing a map by its sum scales it: what that does to a correlation is this sign.
    """
    values, _, mask = _paired(maps, maps, where)
    signs = np.sign(np.where(mask, values, 0.0).sum(axis=1))
    return np.where(signs == 0, np.nan, signs)
