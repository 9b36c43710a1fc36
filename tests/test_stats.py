"""Statistics against SciPy on many random cases, and the interval's coverage by simulation."""

import numpy as np
import pytest
import scipy.stats

from lrputils import stats

CORRELATIONS = {
    "pearson": (stats.pearson, scipy.stats.pearsonr),
    "spearman": (stats.spearman, scipy.stats.spearmanr),
}
both = pytest.mark.parametrize("name", CORRELATIONS)


def random_maps(seed, batch=40, tokens=23, ties=False):
    generator = np.random.default_rng(seed)
    maps = generator.normal(size=(2, batch, tokens)) * 10.0 ** generator.integers(-6, 7)
    if ties:
        maps = np.round(generator.normal(size=(2, batch, tokens)))
    lengths = generator.integers(3, tokens + 1, size=batch)
    return *maps, np.arange(tokens) < lengths[:, None]


@both
@pytest.mark.parametrize("ties", [False, True])
def test_equals_scipy_on_each_example(name, ties):
    ours, theirs = CORRELATIONS[name]
    for seed in range(20):
        x, y, where = random_maps(seed, ties=ties)
        got = ours(x, y, where)
        assert got.dtype == np.float64
        for row in range(len(x)):
            a, b = x[row, where[row]], y[row, where[row]]
            if np.ptp(a) == 0 or np.ptp(b) == 0:
                assert np.isnan(got[row])
            else:
                np.testing.assert_allclose(got[row], theirs(a, b).statistic, rtol=0, atol=1e-12)


@both
def test_constant_maps_and_single_tokens_have_no_correlation(name):
    correlate, _ = CORRELATIONS[name]
    third = np.float32(1) / np.float32(3)
    x = np.array([[third] * 4, [1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0], [1, 2, 3, 4]])
    y = np.array([[1, 2, 3, 4], [third] * 4, [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]])
    where = np.ones((5, 4), bool)
    where[2, 1:] = False
    assert np.isnan(correlate(x, y, where)).tolist() == [True, True, True, True, False]


def test_scores_that_cannot_be_compared_are_named():
    with pytest.raises(ValueError, match=r"scores \(2, 3\), reference \(2, 4\)"):
        stats.pearson(np.zeros((2, 3)), np.zeros((2, 4)))
    broken = np.ones((2, 3))
    broken[1, 2] = np.nan
    with pytest.raises(ValueError, match="`reference` is nan at row 1, token 2"):
        stats.pearson(np.ones((2, 3)), broken)
    with pytest.raises(ValueError, match="single number"):
        stats.pearson(1.0, 2.0)


def test_sum_to_one_flips_maps_with_a_negative_sum():
    maps = np.array([[1.0, 2, 1], [-3, 1, 1], [1, -1, 9], [2, 2, 4]])
    where = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 0]], bool)
    normalized = stats.sum_to_one(maps, where)
    np.testing.assert_array_equal(
        normalized, [[0.25, 0.5, 0.25], [3, -1, -1], [np.nan, np.nan, 0], [0.5, 0.5, 0]]
    )
    reference = np.array([[1.0, 5, 2]] * 2)
    raw = stats.pearson(maps[:2], reference)
    np.testing.assert_allclose(stats.pearson(normalized[:2], reference), raw * [1, -1])


def test_each_method_is_the_one_it_is_called(monkeypatch):
    monkeypatch.setattr(stats, "_RESAMPLES", 100)
    values = np.random.default_rng(3).gamma(1.0, size=30)
    mean, error = values.mean(), scipy.stats.sem(values)
    drawn = values[np.random.default_rng(0).integers(0, 30, size=(100, 30))]
    expected = {
        "percentile": np.quantile(drawn.mean(axis=1), [0.025, 0.975]),
        "t": scipy.stats.t.interval(0.95, 29, mean, error),
    }
    for method, ends in expected.items():
        found = stats.bootstrap_interval(values, method=method)
        np.testing.assert_allclose(found, ends, rtol=1e-12)


def test_halls_interval_undoes_his_transformation():
    """At either end g(T) is Student's quantile; without skewness the interval is Student's."""
    values = np.random.default_rng(3).gamma(1.0, size=30)
    mean, error = values.mean(), scipy.stats.sem(values)
    bent = scipy.stats.skew(values) / 30**0.5
    for end, share in zip(stats.bootstrap_interval(values), (0.975, 0.025), strict=True):
        t = (mean - end) / error
        g = t + bent * t**2 / 3 + bent**2 * t**3 / 27 + bent / 6
        assert g == pytest.approx(scipy.stats.t.ppf(share, 29))
    even = np.concatenate([values, 2 * mean - values])
    student = stats.bootstrap_interval(even, method="t")
    assert stats.bootstrap_interval(even) == pytest.approx(student)
    low, high = stats.bootstrap_interval([0.97] * 19 + [-0.9])  # a map that a sum turned round
    assert -1 < low < 0.5 < high


def test_a_share_has_wilsons_interval():
    right = np.array([True] * 27 + [False] * 3)
    low, high = stats.bootstrap_interval(right)
    assert (low, high) == pytest.approx((0.7438, 0.9654), abs=1e-4)
    every = stats.bootstrap_interval(np.ones(20, bool))
    assert every == pytest.approx((0.8389, 1), abs=1e-4)
    assert stats.bootstrap_interval(np.ones(20)) == (1, 1)  # correlations of one are no share


def test_the_interval_of_a_share_is_clopper_and_pearsons():
    values = np.array([[0.2] * 9 + [-0.1] * 3, [0.1] * 11 + [np.nan], [0.1] * 10 + [0.0, -1]])
    for column, (above, all_) in zip(values, ((9, 12), (11, 11), (10, 11)), strict=True):
        share, low, high = (float(x[0]) for x in stats._share_interval(column[:, None], 0.9))
        exact = scipy.stats.binomtest(above, all_).proportion_ci(0.9, method="exact")
        assert (share, low, high) == pytest.approx((above / all_, *exact))


def test_a_lead_asks_mean_share_and_one_text_more():
    clear = np.linspace(0.1, 0.4, 40)
    assert stats.leads(clear) == 1
    assert stats.leads(-clear) == -1
    mean_alone = np.concatenate([np.full(20, 0.9), np.full(20, -0.1)])  # of half the texts
    share_alone = np.concatenate([np.full(38, 0.05), np.full(2, -0.9)])
    unseen = np.linspace(0.01, 0.04, 40)  # one more at −1 takes the mean to zero
    assert stats.t_interval(mean_alone)[0] > 0
    assert stats._share_interval(share_alone[:, None])[1] > 0.5
    assert stats.leads(unseen, doubt=0) == 1
    columns = np.stack([clear, mean_alone, share_alone, unseen, -clear], axis=1)
    assert stats.leads(columns).tolist() == [1, 0, 0, 0, -1]
    found = stats.paired_difference(clear, np.zeros(40))
    assert found.lead == 1
    assert found[:5] == stats.estimate(clear, method="t")
    assert (found.share, found.median) == pytest.approx((1, 0.25))
    assert stats.paired_difference(unseen, np.zeros(40)).lead == 0


def test_missing_examples_are_counted_not_hidden():
    values = np.array([0.1, np.nan, 0.3, 0.2, np.nan])
    result = stats.estimate(values)
    assert (result.used, result.dropped) == (3, 2)
    assert result.value == pytest.approx(0.2)
    assert (result.low, result.high) == stats.bootstrap_interval([0.1, 0.3, 0.2])
    single, none = stats.estimate([np.nan, 0.3]), stats.estimate([np.nan])
    assert (single.value, single.used, single.dropped) == (0.3, 1, 1)
    assert np.isnan([single.low, single.high, none.value, none.low, none.high]).all()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([1.0], {}, "two examples or more; of 1 values 1"),
        ([1.0, np.nan], {}, "of 2 values 1"),
        ([1.0, 2.0], {"confidence": 95}, "confidence=95"),
        ([1.0, 2.0], {"method": "normal"}, "method='normal'"),
        ([1.0, 2.0], {"method": "t", "statistic": np.median}, "method='t'"),
    ],
)
def test_mistakes_are_named(values, options, message):
    with pytest.raises(ValueError, match=message):
        stats.bootstrap_interval(values, **options)


def test_a_ratio_of_means_resamples_pairs():
    generator = np.random.default_rng(11)
    second = generator.normal(3, 1, 200)
    first = 2 * second
    exact = stats.ratio_of_means(first, second)
    assert exact[:3] == pytest.approx((2, 2, 2))
    noisy = np.append(first + generator.normal(0, 1, 200), np.nan)
    found = stats.ratio_of_means(noisy, np.append(second, 1.0))
    draws = np.random.default_rng(4).integers(0, 200, (4_000, 200))
    reference = [noisy[d].mean() / second[d].mean() for d in draws]
    assert (found.low, found.high) == pytest.approx(
        np.quantile(reference, [0.025, 0.975]), abs=0.01
    )
    assert found.value == pytest.approx(noisy[:200].mean() / second.mean())
    assert (found.used, found.dropped) == (200, 1)
    with pytest.raises(ValueError, match="differ in shape"):
        stats.ratio_of_means([1.0, 2.0], [1.0])


def test_the_interval_of_a_correlation_ends_at_one():
    few = [0.999, 0.95, 1.0, 0.9]
    assert stats.estimate(few).high > 1
    bounded = stats.estimate(few, within=stats.CORRELATION)
    assert bounded.high == 1
    assert bounded[:2] == stats.estimate(few)[:2]
