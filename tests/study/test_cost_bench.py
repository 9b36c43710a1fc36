from __future__ import annotations

import pytest
import torch

from lrputils.attribution import attribute
from lrputils.study.cost.bench import (
    Comparison,
    bench,
    compare,
    comparisons,
    masked_loo,
    plain_gradient,
)


def test_a_ratio_comes_with_its_extremes_and_the_outputs_difference():
    work = Comparison("same", lambda: torch.ones(3), lambda: torch.ones(3) * 1.001, tolerance=0.01)
    row = compare(work, repeats=3)
    assert row["low"] <= row["ours/other"] <= row["high"]
    assert row["difference"] == pytest.approx(0.001, rel=0.01)


def test_faster_but_wrong_is_no_result():
    wrong = Comparison("wrong", lambda: torch.ones(3), lambda: torch.zeros(3) + 2, tolerance=0.01)
    with pytest.raises(ArithmeticError, match="wrong: the outputs differ"):
        compare(wrong)


def test_the_other_side_does_the_same_work(placeholder):
    inputs = placeholder.encode(["a film that is never dull", "long and loud"])
    plain = plain_gradient(placeholder, inputs)
    ours = attribute(placeholder.model, inputs, "grad-x-input")
    assert torch.allclose(plain * inputs.valid_mask, ours, atol=1e-6)
    loo = attribute(placeholder.model, inputs.rows(0), "loo")[inputs.rows(0).content_mask]
    assert torch.allclose(masked_loo(placeholder, inputs), loo, atol=1e-5)


def test_every_comparison_of_equal_work_is_checked(placeholder):
    inputs = placeholder.encode("never dull")
    checked = [work.tolerance is not None for work in comparisons(placeholder, inputs)]
    assert checked == [False, False, True, True]


def test_bench_gives_a_row_a_claim():
    rows = bench(dataset="reviews", texts=2, repeats=1)
    assert len(rows) == 4
    assert (rows["ours s"] > 0).all()
