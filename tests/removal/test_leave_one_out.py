"""Leave-one-out against a slow reference: one forward pass a token, with a full mask."""

from unittest import mock

import pytest
import torch

import lrputils as lrp
from experiments.families import plain_loo
from lrputils.model import readout
from lrputils.removal import packing, shortcuts
from tests import reference, tiny

CLASSIFIERS = tuple(name for name in tiny.TEXT_NAMES if not name.endswith("-lm"))


@pytest.mark.parametrize("name", tiny.TEXT_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_equals_masking_one_key_at_a_time(name, dtype, tolerance):
    model = tiny.build(name, dtype=dtype)
    # Without another token MPNet's attention reads the hidden one, and is refused.
    inputs = tiny.texts((7, 4, 5, 3) if name == "mpnet" else (7, 4, 5, 3, 1))
    fast = lrp.leave_one_out(model, inputs)
    slow = reference.leave_one_out(model, inputs)
    assert fast.dtype == dtype
    assert slow.abs().max() > 1e-3
    torch.testing.assert_close(fast.double(), slow, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mpnet", "roberta"])
@pytest.mark.parametrize("padding", [tiny.PAD, 0])
@pytest.mark.parametrize("inner", [0, 1])
@pytest.mark.parametrize("removal", ["attention-mask", "pad", "delete"])
def test_a_padding_token_takes_no_position_in_a_text_either(name, padding, inner, removal):
    model, inputs = tiny.build(name, pad_token_id=padding), tiny.texts((8,))
    inputs["input_ids"][0, 3] = inner
    inputs = lrp.Inputs(inputs, replacements={"pad": padding})
    with torch.no_grad():
        expected = plain_loo(model, inputs, removal, None, inputs.valid_mask)
    found = lrp.leave_one_out(model, inputs, removal=removal)
    torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_packed_weights_change_rounding_alone(name, monkeypatch):
    model, inputs = tiny.build(name, dtype=torch.float32), tiny.texts()
    plain = lrp.leave_one_out(model, inputs)
    kept, packed = [], shortcuts._Linear
    monkeypatch.setattr(shortcuts, "LEAST_TOKENS", 0)
    monkeypatch.setattr(shortcuts, "_Linear", lambda own: kept.append(packed(own)) or kept[-1])
    # LOO is a difference of logits, and float32 rounds those.
    size = float(readout.read(lrp.describe(model), inputs).logits.abs().max())
    found = lrp.leave_one_out(model, inputs)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=3e-6 * size)
    fused = {shortcuts._FUSED.get(type(module)) for module in kept[-1].forwards} - {None}
    assert set(kept[-1].pairs.values()) == fused
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "gpt2", "llama"])
@pytest.mark.parametrize("removal", ["mask", "pad", "unk", "zero", "delete"])
def test_other_removals_equal_writing_the_changed_text(name, removal):
    replacements = {"mask": tiny.MASK, "pad": tiny.PAD, "unk": 30}
    model, inputs = tiny.build(name), lrp.Inputs(tiny.texts(), replacements=replacements)
    found = lrp.leave_one_out(model, inputs, removal=removal)
    expected = reference.leave_one_out(model, inputs, removal)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_difference_is_the_lead_over_the_second_class():
    model, inputs = tiny.build("bert"), tiny.texts((6,))
    first, second = reference.without(model, inputs, 0).topk(2).indices
    expected = reference.leave_one_out(model, inputs, read=lambda x: x[first] - x[second])
    found = lrp.leave_one_out(model, inputs, output="difference")
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_no_batch_is_larger_than_the_budget(monkeypatch):
    sizes = []

    def spy(architecture, texts, batch, device, *more, original=packing.logits_of):
        sizes.append((len(batch), max(row.length for row in batch)))
        return original(architecture, texts, batch, device, *more)

    monkeypatch.setattr(packing, "logits_of", spy)
    lrp.leave_one_out(tiny.build("bert"), tiny.texts((30, 12, 7, 3)), batch_tokens=40)
    assert max(count * width for count, width in sizes) <= 40
    assert max(count for count, _ in sizes) > 1
    sizes.clear()
    lrp.leave_one_out(tiny.build("bert"), tiny.texts((30,)), batch_tokens=5)
    assert {count for count, _ in sizes} == {1}


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
)
def test_out_of_memory_halves_the_budget_and_goes_on(monkeypatch, error):
    model, inputs = tiny.build("bert"), tiny.texts((9, 6, 4))
    expected = lrp.leave_one_out(model, inputs)
    sizes = []

    def small_machine(architecture, texts, batch, device, *more, original=packing.logits_of):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise error
        return original(architecture, texts, batch, device, *more)

    monkeypatch.setattr(packing, "logits_of", small_machine)
    torch.testing.assert_close(lrp.leave_one_out(model, inputs), expected, rtol=1e-9, atol=1e-9)
    assert max(sizes) > 2


@pytest.mark.parametrize("message", ["not enough memory", "something else"])
def test_other_errors_and_a_row_too_large_for_memory_are_raised(monkeypatch, message):
    monkeypatch.setattr(packing, "logits_of", mock.Mock(side_effect=RuntimeError(message)))
    with pytest.raises(RuntimeError, match=message):
        lrp.leave_one_out(tiny.build("bert"), tiny.texts((5,)))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral"])
def test_sliding_windows_are_masked_not_deleted(name):
    options = {} if name == "mistral" else {"use_sliding_window": True, "max_window_layers": 1}
    model, inputs = tiny.build(name, sliding_window=3, **options), lrp.Inputs(tiny.texts((9,)))
    with torch.no_grad():
        expected = plain_loo(model, inputs, "attention-mask", None, inputs.valid_mask)
    torch.testing.assert_close(lrp.leave_one_out(model, inputs).float(), expected)


def test_patches_of_an_image():
    model, images = tiny.build("vit"), tiny.images(3)
    scores = lrp.leave_one_out(model, images, batch_tokens=11)
    with torch.no_grad():
        whole = model(**images).logits.max(1)
        for token in range(5):
            mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
            mask[..., token] = False
            without = model(**images, attention_mask=mask).logits
            expected = whole.values - without.gather(1, whole.indices[:, None])[:, 0]
            torch.testing.assert_close(scores[:, token], expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="attention-mask"):
        lrp.leave_one_out(model, images, removal="mask")


def test_a_text_of_one_token_is_not_deleted():
    with pytest.raises(ValueError, match="single token"):
        lrp.leave_one_out(tiny.build("bert"), tiny.texts((1,)), removal="delete")
