"""The precision of matrix products: set inside the block, restored after it, never pretended."""

from __future__ import annotations

import pytest
import torch

from lrputils.model.forwards import PRECISIONS, matmul_precision

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
