"""The specification grid: each number against a plain loop with scipy."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lrputils.study import specifications as spec

_SCIPY = {
    "Pearson": lambda x, y: scipy.stats.pearsonr(x, y).statistic,
    "Spearman": lambda x, y: scipy.stats.spearmanr(x, y).statistic,
    "Kendall": lambda x, y: scipy.stats.kendalltau(x, y).statistic,
}


def _row(text, content, method, scores, rules="", readout="", removal=""):
    label = {"method": method, "rules": rules, "readout": readout, "removal": removal}
    return {"id": text, "content": content, "scores": scores.astype(np.float32), **label}


@pytest.fixture(scope="module")
def rows():
    """Six texts of 5 to 10 tokens; some maps sum to less than zero, some scores are tied."""
    draws = np.random.default_rng(0)
    found = []
    for text in range(6):
        tokens = 5 + text
        content = np.ones(tokens, bool)
        content[[0, -1]] = False
        scores = iter(draws.normal(size=(20, tokens)).round(1))
        found += [_row(text, content, "attnlrp", next(scores), readout="word")]
        for removal in ("attention-mask", "zero"):
            found += [_row(text, content, "loo", next(scores), removal=removal)]
        for method in ("attnlrp", "cp-lrp"):
            for rules in ("norm=held", ""):
                for readout in ("word", "sum"):
                    if (method, rules, readout) != ("attnlrp", "", "word"):
                        found += [_row(text, content, method, next(scores), rules, readout)]
        found += [_row(text, content, "mask-gradient", next(scores))]
    return pd.DataFrame(found)


@pytest.fixture(scope="module")
def found(rows):
    return spec.agreement(rows)


def _by_hand(maps, text, method, rules, readout, tokens, normalisation, removal, coefficient):
    """Written from the definitions: leave tokens out, divide by the sums, correlate."""
    maps = [maps[text, method, rules, readout, ""], maps[text, "loo", "", "", removal]]
    kept = list(range(len(maps[0])))
    if tokens in ("no [CLS]", "neither"):
        kept = kept[1:]
    if tokens in ("no [SEP]", "neither"):
        kept = kept[:-1]
    chosen = [scores.astype(float)[kept] for scores in maps]
    if normalisation == "sum to one":
        chosen = [scores / scores.sum() for scores in chosen]
    return _SCIPY[coefficient](*chosen)


def test_every_number_is_scipy_s(rows, found):
    assert found.shape == (6, 9 * 4 * 2 * 2 * 3)
    assert (found.xs("sum to one", axis=1, level="normalisation") < 0).any(axis=None)
    label = ["id", "method", "rules", "readout", "removal"]
    maps = rows.set_index(label).scores.to_dict()
    for (method, rules, readout, *rest), column in found.items():
        rules = "" if rules == spec.DEFAULT else rules
        for text in (0, 5):
            expected = _by_hand(maps, text, method, rules, readout, *rest)
            assert column[text] == pytest.approx(expected, abs=1e-5)


def test_a_difference_pairs_what_both_methods_have(found):
    gaps = spec.difference(found, "attnlrp", "cp-lrp")
    assert gaps.columns.names == spec.CHOICES
    assert gaps.shape == (6, 4 * 4 * 2 * 2 * 3)
    column = ("norm=held", "sum", "no [CLS]", "raw", "zero", "Kendall")
    expected = found[("attnlrp", *column)] - found[("cp-lrp", *column)]
    assert np.array_equal(gaps[column], expected)


@pytest.mark.parametrize("scores", [[0.1, 0.1, 0.1], [0.0, 0.0, 0.0]])
def test_a_constant_map_has_no_correlation(scores):
    content = np.ones(3, bool)
    rows = [
        _row(0, content, "loo", np.array([1.0, 2.0, 4.0]), removal="zero"),
        _row(0, content, "flat", np.array(scores)),
    ]
    assert spec.agreement(pd.DataFrame(rows)).isna().all(axis=None)


def test_a_text_without_special_tokens_leaves_none_out():
    content = np.ones(4, bool)
    rows = [
        _row(0, content, "loo", np.array([1.0, 2.0, 4.0, 3.0]), removal="zero"),
        _row(0, content, "own", np.array([1.0, 3.0, 2.0, 9.0])),
    ]
    wide = spec.agreement(pd.DataFrame(rows))
    assert wide.T.groupby(["normalisation", "coefficient"])[0].nunique().eq(1).all()


def test_intervals_are_students_over_texts():
    draws = np.random.default_rng(1)
    columns = pd.MultiIndex.from_product([["raw", "sum"], ["a", "b"]], names=["one", "other"])
    gaps = pd.DataFrame(draws.normal([0.5, -0.5, 0.0, 2.0], size=(50, 4)), columns=columns)
    gaps.iloc[3, 1] = np.nan
    table = spec.curve(gaps)
    assert list(table.value) == sorted(gaps.mean())
    for label, row in table.iterrows():
        values = gaps[label].dropna().to_numpy()
        ends = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
        assert (row.low, row.high) == pytest.approx(ends)


def _grid(function, **levels):
    index = pd.MultiIndex.from_product(levels.values(), names=list(levels))
    return pd.Series([function(*choice) for choice in index], index)


class TestImportance:
    def test_a_sum_is_main_effects_only(self):
        shares = spec.importance(_grid(lambda a, b, c: 2 * a + b, a=[0, 1], b=[0, 1], c=[0, 1]))
        assert shares["alone"].to_dict() == pytest.approx({"a": 0.8, "b": 0.2, "c": 0})
        assert shares["with others"].to_dict() == pytest.approx({"a": 0.8, "b": 0.2, "c": 0})

    def test_a_product_of_signs_is_interaction_only(self):
        shares = spec.importance(_grid(lambda a, b: a * b, a=[-1, 1], b=[-1, 1]))
        assert shares["alone"].to_list() == pytest.approx([0, 0])
        assert shares["with others"].to_list() == pytest.approx([1, 1])

    def test_the_order_of_the_rows_is_no_matter(self):
        grid = _grid(lambda a, b: a + 3 * b + a * b, a=[0, 1, 5], b=[0, 1])
        mixed = grid.sample(frac=1, random_state=0)
        pd.testing.assert_frame_equal(spec.importance(grid), spec.importance(mixed))

    def test_a_grid_with_holes_is_refused(self):
        with pytest.raises(ValueError, match="3 specifications are no balanced grid of 4"):
            spec.importance(_grid(lambda a, b: a + b, a=[0, 1], b=[0, 1]).iloc[1:])


def _signs(signs):
    return pd.DataFrame({"value": signs, "low": signs - 0.5, "high": signs + 0.5})


def test_reversals_count_what_one_choice_alone_turns_round():
    # decided by `a` where b = 0; undecided where b = 1
    table = _signs(_grid(lambda a, b: (2.0 * a - 1) * (1 - b), a=[0, 1], b=[0, 1]))
    found = spec.reversals(table)
    assert found.reversed.to_dict() == {"a": 0.5, "b": 0.0}
    assert found.undecided.to_dict() == {"a": 0.5, "b": 1.0}
    assert spec.outcome(table).to_dict() == {"above": 0.25, "below": 0.25, "undecided": 0.5}


def test_reversals_do_not_grow_with_the_number_of_values():
    two = _signs(_grid(lambda a, b: 2.0 * a - 1, a=[0, 1], b=[0]))
    six = _signs(_grid(lambda a, b: 1.0 if a else -1.0, a=range(6), b=[0]))
    assert spec.reversals(two).reversed["a"] == 1
    assert spec.reversals(six).reversed["a"] == pytest.approx(5 / 15)


def test_rows_are_chosen_by_their_choices(found):
    table = spec.curve(spec.difference(found, "attnlrp", "cp-lrp"))
    part = spec.at(
        table, read_out="sum", coefficient=["Pearson", "Kendall"], rules=spec.VARIED_RULES
    )
    assert set(part.index.get_level_values("read-out")) == {"sum"}
    assert len(part) == 2 * 2 * 4 * 2 * 2
    both = spec.across({("small", "SST-2"): table, ("large", "SST-2"): table})
    assert len(both) == 2 * len(table)
    assert both.value.is_monotonic_increasing
    assert spec.at(both, model="small").value.tolist() == table.value.tolist()
