"""Leave-one-out against a slow reference: one forward pass a token, with a full mask."""

from __future__ import annotations

import pytest
import torch

from experiments.families import plain_loo
from lrputils.model import readout
from lrputils.model.architectures import describe
from lrputils.model.forwards import replaced
from lrputils.model.inputs import Inputs
from lrputils.removal import packing, shortcuts
from lrputils.removal.leave_one_out import leave_one_out
from tests import tiny

CLASSIFIERS = tuple(name for name in tiny.TEXT_NAMES if not name.endswith("-lm"))


def logits_of(model, inputs, row):
    """The model's own logits of one text alone; a next-token model's at its last token."""
    with torch.no_grad():
        logits = model(**describe(model).arguments(tiny.row(inputs, row))).logits[0]
    return logits if logits.dim() == 1 else logits[-1]


def logits_without(model, inputs, row, gone):
    """Logits of one text when the tokens `gone` are masked as keys, everywhere, by a 4-D mask.

    A query that loses its only key is read by no one but is NaN under the softmax: it is let see
    itself, unless it is the head's.
    """
    architecture, one = describe(model), tiny.row(inputs, row)
    length = one["input_ids"].shape[1]
    seen = torch.ones(length, length, dtype=torch.bool)
    seen = seen.tril() if architecture.kind.causal else seen
    seen[:, list(gone)] = False
    for token in {*gone} - {int(architecture.head_tokens(torch.ones(1, length)))}:
        seen[token, token] |= not seen[token].any()
    dtype = next(model.parameters()).dtype
    mask = torch.zeros(1, 1, length, length, dtype=dtype).masked_fill(~seen, -torch.inf)
    with torch.no_grad():
        logits = model(input_ids=one["input_ids"], attention_mask=mask).logits[0]
    return logits if logits.dim() == 1 else logits[-1]


def slow_leave_one_out(model, inputs):
    scores = torch.zeros(inputs["input_ids"].shape, dtype=torch.float64)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        whole = logits_of(model, inputs, row)
        target = whole.argmax()
        for token in range(length):
            scores[row, token] = whole[target] - logits_without(model, inputs, row, [token])[target]
    return scores


@pytest.mark.parametrize("name", tiny.TEXT_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_equals_masking_one_key_at_a_time(name, dtype, tolerance):
    model = tiny.build(name, dtype=dtype)
    inputs = tiny.texts((7, 4, 5, 7, 3))
    fast = leave_one_out(model, inputs)
    slow = slow_leave_one_out(model, inputs)
    assert fast.dtype == dtype
    assert slow.abs().max() > 1e-3
    torch.testing.assert_close(fast.double(), slow, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["mpnet", "roberta"])
def test_positions_after_a_padding_token_with_another_id(name):
    model, inputs = tiny.build(name, pad_token_id=0), tiny.texts((6,))
    torch.testing.assert_close(leave_one_out(model, inputs), slow_leave_one_out(model, inputs))


@pytest.mark.parametrize("name", ["mpnet", "roberta", "xlm_roberta"])
@pytest.mark.parametrize("padding", [tiny.PAD, 0])
@pytest.mark.parametrize("inner", [0, 1, 30])
@pytest.mark.parametrize("removal", ["attention-mask", "pad", "delete"])
def test_a_padding_token_takes_no_position_in_a_text_either(name, padding, inner, removal):
    model, inputs = tiny.build(name, pad_token_id=padding), tiny.texts((8,))
    inputs["input_ids"][0, 3] = inner
    inputs = Inputs(inputs, replacements={"pad": padding})
    everywhere = inputs.valid_mask
    with torch.no_grad():
        expected = plain_loo(model, inputs, removal, None, everywhere)
    found = leave_one_out(model, inputs, removal=removal)
    torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_packed_weights_change_rounding_alone(name, monkeypatch):
    model, inputs = tiny.build(name, dtype=torch.float32), tiny.texts()
    plain = leave_one_out(model, inputs)
    kept = []

    class Kept(shortcuts._Linear):
        def __init__(self, *args):
            super().__init__(*args)
            kept.append(self)

    monkeypatch.setattr(shortcuts, "_TOKENS", 0)
    monkeypatch.setattr(shortcuts, "_Linear", Kept)
    # LOO is a difference of logits, and float32 rounds those.
    size = float(readout.read(describe(model), inputs).logits.abs().max())
    found = leave_one_out(model, inputs)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=3e-6 * size)
    fused = {shortcuts._FUSED.get(type(module)) for module in kept[-1].forwards} - {None}
    assert set(kept[-1].pairs.values()) == fused
    assert all("forward" not in vars(module) for module in model.modules())


def test_a_single_token_of_a_decoder_then_attends_to_nothing():
    model = tiny.build("gpt2")
    inputs = tiny.texts((1,))
    score = leave_one_out(model, inputs)
    whole = logits_of(model, inputs, 0)

    nothing = {
        block.attn.c_proj: lambda f, x: f(torch.zeros_like(x)) for block in model.transformer.h
    }
    with replaced(nothing):
        without = logits_of(model, inputs, 0)
    target = whole.argmax()
    torch.testing.assert_close(score[0, 0], (whole - without)[target])
    assert score.abs() > 1e-3


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "gpt2", "llama"])
@pytest.mark.parametrize("removal", ["mask", "pad", "unk", "zero", "delete"])
def test_other_removals_equal_writing_the_changed_text(name, removal):
    model = tiny.build(name)
    architecture = describe(model)
    plain = tiny.texts((7, 4, 5))
    inputs = Inputs(plain, replacements={"mask": tiny.MASK, "pad": tiny.PAD, "unk": 30})
    scores = leave_one_out(model, inputs, removal=removal)
    for row, length in enumerate((7, 4, 5)):
        whole = logits_of(model, plain, row)
        target = whole.argmax()
        for token in range(length):
            ids = plain["input_ids"][row : row + 1, :length]
            positions = architecture.position_ids(ids, torch.ones_like(ids))
            if removal == "delete":
                ids = torch.cat([ids[:, :token], ids[:, token + 1 :]], dim=1)
                positions = positions[:, : length - 1]
            elif removal != "zero":
                ids = ids.clone()
                ids[0, token] = inputs.replacements[removal]
                positions = architecture.position_ids(ids, torch.ones_like(ids))
            embedded = architecture.word_embeddings(ids)
            if removal == "zero":
                embedded[0, token] = 0
            mask = torch.ones_like(ids)
            with torch.no_grad():
                states = architecture.backbone(
                    inputs_embeds=embedded, position_ids=positions, attention_mask=mask
                )
                logits = head_of(model, architecture, states)
            expected = whole[target] - logits[0, target]
            torch.testing.assert_close(scores[row, token], expected, rtol=1e-10, atol=1e-10)


def head_of(model, architecture, states):
    if architecture.kind.causal:
        return model.score(states[0][:, -1])
    if architecture.kind.name in ("roberta", "xlm_roberta", "mpnet"):
        return model.classifier(states[0])
    return model.classifier(states[1])


def test_outputs_are_the_logit_its_lead_and_its_probability():
    model, inputs = tiny.build("bert"), tiny.texts((6,))
    whole = logits_of(model, inputs, 0)
    first, second = whole.topk(2).indices
    readings = {
        "logit": lambda x: x[first],
        "difference": lambda x: x[first] - x[second],
        "probability": lambda x: x.softmax(0)[first],
    }
    for output, read in readings.items():
        scores = leave_one_out(model, inputs, output=output)[0]
        for token in range(6):
            expected = read(whole) - read(logits_without(model, inputs, 0, [token]))
            torch.testing.assert_close(scores[token], expected, rtol=1e-10, atol=1e-10)


def test_no_batch_is_larger_than_the_budget(monkeypatch):
    sizes = []

    def spy(architecture, texts, batch, device, original=packing.logits_of):
        sizes.append((len(batch), max(row.length for row in batch)))
        return original(architecture, texts, batch, device)

    monkeypatch.setattr(packing, "logits_of", spy)
    leave_one_out(tiny.build("bert"), tiny.texts((30, 12, 7, 3)), batch_tokens=40)
    assert max(count * width for count, width in sizes) <= 40
    assert max(count for count, _ in sizes) > 1
    sizes.clear()
    leave_one_out(tiny.build("bert"), tiny.texts((30,)), batch_tokens=5)
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
    expected = leave_one_out(model, inputs)
    sizes = []

    def small_machine(architecture, texts, batch, device, original=packing.logits_of):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise error
        return original(architecture, texts, batch, device)

    monkeypatch.setattr(packing, "logits_of", small_machine)
    torch.testing.assert_close(leave_one_out(model, inputs), expected, rtol=1e-9, atol=1e-9)
    assert max(sizes) > 2


def test_other_errors_and_a_row_too_large_for_memory_are_raised(monkeypatch):
    model, inputs = tiny.build("bert"), tiny.texts((5,))
    for message in ("not enough memory", "something else"):

        def fails(*_, message=message):
            raise RuntimeError(message)

        monkeypatch.setattr(packing, "logits_of", fails)
        with pytest.raises(RuntimeError, match=message):
            leave_one_out(model, inputs)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral"])
def test_sliding_windows_are_masked_not_deleted(name):
    options = {} if name == "mistral" else {"use_sliding_window": True, "max_window_layers": 1}
    model = tiny.build(name, sliding_window=3, **options)
    inputs = tiny.texts((9,))
    scores = leave_one_out(model, inputs)
    whole = logits_of(model, inputs, 0)
    for token in range(9):
        mask = torch.ones(1, 9, dtype=torch.long)
        mask[0, token] = 0
        without = model(input_ids=inputs["input_ids"], attention_mask=mask)
        states = model.model(input_ids=inputs["input_ids"], attention_mask=mask)[0][0, -1]
        expected = whole[whole.argmax()] - model.score(states)[whole.argmax()]
        assert without.logits.shape == (1, tiny.LABELS)
        torch.testing.assert_close(scores[0, token], expected, rtol=1e-10, atol=1e-10)


def test_patches_of_an_image():
    model, images = tiny.build("vit"), tiny.images(3)
    scores = leave_one_out(model, images, batch_tokens=11)
    assert scores.shape == (3, 5)
    with torch.no_grad():
        whole = model(**images).logits
        for row in range(3):
            target = whole[row].argmax()
            for token in range(5):
                mask = torch.ones(1, 1, 5, 5, dtype=torch.bool)
                mask[..., token] = False
                one = images["pixel_values"][row : row + 1]
                without = model(pixel_values=one, attention_mask=mask).logits[0]
                expected = (whole[row] - without)[target]
                torch.testing.assert_close(scores[row, token], expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="attention-mask"):
        leave_one_out(model, images, removal="mask")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"removal": "erase"}, "'erase' is not one of"),
        ({"output": "logits"}, "'logits' is not one of"),
        ({"removal": "mask"}, r"clf\.encode"),
        ({"batch_tokens": -1}, "batch_tokens=-1"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"target": "positive"}, "'positive' is none of LABEL_0"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        leave_one_out(tiny.build("bert"), tiny.texts(), **options)


def test_a_model_in_training_mode_and_a_text_of_one_token_are_refused():
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        leave_one_out(tiny.build("bert").train(), tiny.texts())
    with pytest.raises(ValueError, match="single token"):
        leave_one_out(tiny.build("bert"), tiny.texts((1,)), removal="delete")


def test_a_model_that_returns_nan_is_refused():
    model = tiny.build("bert")
    model.classifier.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinite logits.*\[0, 1, 2\]"):
        leave_one_out(model, tiny.texts())
