"""Another forward pass for one instance or at another precision, and out again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lrputils.model.forwards import PRECISIONS, matmul_precision, replaced


def plus(amount):
    return lambda inner, x: inner(x) + amount


def test_only_this_instance_changes_and_only_inside_the_block():
    module, other, x = nn.Identity(), nn.Identity(), torch.zeros(1)
    double = {module: lambda inner, x: 2 * inner(x)}
    with replaced({module: plus(1)}), replaced(double):
        assert (float(module(x)), float(other(x))) == (2, 0)
    with replaced(double), replaced({module: plus(1)}):
        assert float(module(x)) == 1
    assert "forward" not in module.__dict__


def test_it_comes_out_after_an_error_and_after_a_failed_start():
    module = nn.Identity()
    with pytest.raises(KeyError), replaced({module: plus(1)}):
        raise KeyError
    with pytest.raises(AttributeError), replaced({module: plus(1), "no module": plus(1)}):
        pass
    assert "forward" not in module.__dict__


def test_another_thread_sees_the_original():
    module, x = nn.Identity(), torch.zeros(1)

    def look():
        with replaced({module: plus(5)}):
            return float(module(x))

    with replaced({module: plus(1)}), ThreadPoolExecutor(1) as pool:
        assert float(pool.submit(module, x).result()) == 0
        assert pool.submit(look).result() == 5
        assert float(module(x)) == 1
    assert "forward" not in module.__dict__


# --- the precision of matrix products: set inside the block, never pretended -------------------


SETTINGS = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}
PAIRS = [(kind, precision) for kind, known in PRECISIONS.items() for precision in known]


@pytest.mark.parametrize(("kind", "precision"), PAIRS)
def test_the_precision_holds_inside_and_is_restored_after_an_error_too(kind, precision):
    before = SETTINGS[kind].fp32_precision

    def fail():
        assert SETTINGS[kind].fp32_precision == {"float32": "ieee"}.get(precision, precision)
        raise KeyError

    with pytest.raises(KeyError), matmul_precision(precision, kind):
        fail()
    assert SETTINGS[kind].fp32_precision == before


@pytest.mark.parametrize(
    ("precision", "device"), [("half", "cpu"), ("bf16", "cuda"), ("tf32", "meta")]
)
def test_a_precision_that_the_device_lacks_is_named(precision, device):
    with pytest.raises(ValueError, match=f"{precision}.*{device}.*float32"):
        matmul_precision(precision, device).__enter__()
