"""Another forward pass for one instance, and out again."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lrputils.model.forwards import replaced


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
