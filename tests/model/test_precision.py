"""The precision of matrix products: set inside the block, restored after it, never pretended."""

from __future__ import annotations

import pytest
import torch

from lrputils.model.forwards import PRECISIONS, matmul_precision

SETTINGS = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}
PAIRS = [(kind, precision) for kind, known in PRECISIONS.items() for precision in known]


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Float32 values rounded to `bits` bits of mantissa, by their definition."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() / 2.0 ** (bits + 1), exponent)


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


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 10), ("bf16", 7)])
def test_where_it_takes_effect_the_factors_are_rounded(precision, bits):
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(2, 128, 128, generator=generator)
    with matmul_precision(precision):
        ours = left @ right
    exact = left.double() @ right.double()
    # Some CPUs only add up in another order, an error of 1e-5; 10 bits make one of 5e-3.
    if (ours - exact).abs().max() < 1e-3:
        pytest.skip(f"this CPU has no {precision} product")
    assert ours.dtype == torch.float32
    reference = rounded(left, bits) @ rounded(right, bits)
    # What is left besides the rounding of the factors is float32's own error in the sums.
    assert (ours - reference).abs().max() < 0.02 * (exact - reference).abs().max()
