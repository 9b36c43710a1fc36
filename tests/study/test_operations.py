"""Counted operations are those that torch dispatches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study import bench
from lrputils.study.bench import Shape, untrained

SHAPE = Shape(layers=3, hidden=64, inner=256, heads=1)


@pytest.fixture(scope="module")
def model():
    return untrained(3, 64)


def _of_attention(query, key, value, *args, out_shape=None, **kwargs) -> int:
    """What the counter has for GPUs, for the CPU's fused attention: Q·Kᵀ and A·V."""
    batch, heads, n, size = query
    return 4 * batch * heads * n * key[2] * size


FUSED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _of_attention}


def counted(work) -> int:
    with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        work()
    return counter.get_total_flops()


def head(rows: int) -> int:
    """The pooler and two classes, which the count leaves out."""
    return rows * (2 * 64 * 64 + 2 * 64 * 2)


def test_the_shape_is_the_models(model):
    assert Shape.of(model) == SHAPE


@pytest.mark.parametrize("words", [3, 9])
def test_a_forward_pass(model, words):
    inputs = model.encode("dull " * words)
    n = int(inputs.lengths)
    with torch.no_grad():
        found = counted(lambda: model.model(**inputs.model_kwargs()))
    assert found - head(1) == SHAPE.forward(n)


@pytest.mark.parametrize("words", [3, 9])
def test_leave_one_out(model, words):
    inputs = model.encode("dull " * words)
    n = int(inputs.lengths)
    found = counted(lambda: leave_one_out(model, inputs, progress=False))
    assert found - head(n + 1) == SHAPE.loo(n)


def test_the_savings_are_those_of_fewer_tokens_and_a_smaller_last_layer():
    n = np.array([8, 64])
    assert (SHAPE.loo(n) < SHAPE.naive_loo(n)).all()
    deep = Shape(layers=1000, hidden=64, inner=256, heads=1)
    assert deep.loo(400) / deep.naive_loo(400) == pytest.approx(1, abs=0.01)


def test_a_random_model_is_the_same_each_time_and_leaves_torchs_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = untrained(1, 64)
    assert torch.rand(1) == expected
    assert first.identity == untrained(1, 64).identity


def test_the_rate_and_the_parts_are_positive(model):
    assert bench.matrix_rate(model, tokens=64, repeats=1) > 0
    parts = bench.shares(model, model.encode("dull and long"), repeats=1)
    assert parts["matrix products"] > 0
    assert all(math.isfinite(seconds) for seconds in parts.values())


def test_one_thing_varies_at_a_time(model):
    sizes = {"lengths": (4, 9), "depths": (1,), "widths": (128,), "budgets": (4, 64)}
    rows = bench.model_against_clock(model, "dull " * 5, **sizes, middle=4, repeats=1)
    assert list(rows.varied) == ["tokens", "layers", "width", "tokens a batch", "tokens a batch"]
    assert (rows.tokens == 4).all()  # the text has no nine
    assert (rows.seconds > 0).all()
    deep = rows.set_index("varied").operations
    assert deep["layers"] == Shape(1, 64, 256, 1).loo(4)


def test_throughput_is_a_row_a_method(model):
    rows = bench.throughput(model, {"few": model.encode(["dull", "long and loud"])})
    assert (rows.seconds > 0).all()
    assert rows.tokens.iloc[0] == 4
