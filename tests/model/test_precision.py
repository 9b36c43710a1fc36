"""The precision of matrix products: set inside the block, restored after it, never pretended."""

from __future__ import annotations

import pytest
import torch

from lrputils.model.precision import PRECISIONS, matmul_precision, takes_effect

SETTINGS = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}
PAIRS = [(kind, precision) for kind, known in PRECISIONS.items() for precision in known]


def rounded(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Float32 values rounded to `bits` bits of mantissa, by their definition."""
    mantissa, exponent = torch.frexp(values.double())
    return torch.ldexp((mantissa * 2.0 ** (bits + 1)).round() / 2.0 ** (bits + 1), exponent)


@pytest.mark.parametrize(("kind", "precision"), PAIRS)
def test_the_setting_holds_inside_and_is_restored(kind, precision):
    before = SETTINGS[kind].fp32_precision
    with matmul_precision(precision, kind):
        asked = {"float32": "ieee"}.get(precision, precision)
        assert SETTINGS[kind].fp32_precision == asked
    assert SETTINGS[kind].fp32_precision == before


@pytest.mark.parametrize(("kind", "precision"), PAIRS)
def test_an_exception_restores_it_too(kind, precision):
    before = SETTINGS[kind].fp32_precision
    with pytest.raises(KeyError), matmul_precision(precision, kind):
        raise KeyError
    assert SETTINGS[kind].fp32_precision == before


def test_blocks_nest():
    with matmul_precision("bf16"):
        with matmul_precision("float32"):
            assert SETTINGS["cpu"].fp32_precision == "ieee"
        assert SETTINGS["cpu"].fp32_precision == "bf16"


def test_the_callers_own_choice_comes_back_by_either_interface():
    torch.set_float32_matmul_precision("high")
    try:
        with matmul_precision("float32", "cuda"):
            assert SETTINGS["cuda"].fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "high"
        assert SETTINGS["cuda"].fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("precision", "device"), [("half", "cpu"), ("bf16", "cuda"), ("tf32", "meta")]
)
def test_a_precision_that_the_device_lacks_is_named(precision, device):
    with pytest.raises(ValueError, match=f"{precision}.*{device}.*float32"):
        matmul_precision(precision, device).__enter__()


def test_float32_changes_nothing():
    assert not takes_effect("float32")


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 10), ("bf16", 7)])
def test_where_it_takes_effect_the_factors_are_rounded(precision, bits):
    if not takes_effect(precision):
        pytest.skip(f"this CPU has no {precision} product")
    generator = torch.Generator().manual_seed(3)
    left, right = torch.randn(2, 128, 128, generator=generator)
    with matmul_precision(precision):
        ours = left @ right
    assert ours.dtype == torch.float32
    exact = left.double() @ right.double()
    reference = rounded(left, bits) @ rounded(right, bits)
    # What is left besides the rounding of the factors is float32's own error in the sums.
    assert (ours - reference).abs().max() < 0.02 * (exact - reference).abs().max()


def test_an_older_torch_is_told_so(monkeypatch):
    monkeypatch.setattr("lrputils.model.precision._settings", lambda kind: None)
    with matmul_precision("float32"):
        pass
    with pytest.raises(RuntimeError, match=r"torch 2\.9"):
        matmul_precision("tf32").__enter__()
