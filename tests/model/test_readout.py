"""Which number is explained, and the tensor it is read at."""

import pytest
import torch

from lrputils.model.architectures import describe
from lrputils.model.readout import READOUTS, read
from tests import tiny


@pytest.mark.parametrize("name", tiny.NAMES)
def test_looking_changes_nothing(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    architecture = describe(model)
    with torch.no_grad():
        expected = model(**architecture.arguments(inputs)).logits
    if architecture.language_model:  # read at each text's last token
        expected = expected[torch.arange(3), inputs["attention_mask"].sum(1) - 1]
    reading = read(architecture, inputs)
    torch.testing.assert_close(reading.logits, expected)
    assert torch.equal(reading.output.detach(), reading.logits.amax(1))
    assert not any("forward" in module.__dict__ for module in model.modules())


WITHOUT_NORM = tuple(n for n in tiny.NAMES if describe(tiny.build(n)).embedding_norm is None)


@pytest.mark.parametrize(
    ("name", "readout"),
    [
        (name, readout)
        for name in tiny.NAMES
        for readout in READOUTS
        if readout != "post-norm" or name not in WITHOUT_NORM
    ],
)
def test_the_gradient_is_that_of_the_tensor_which_is_read(name, readout):
    """A small step of the words moves the logit by the read-out's own step times its gradient."""
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    architecture = describe(model)
    reading = read(architecture, inputs, readout=readout, target=0)
    gradient = reading.gradient()
    assert gradient.shape == reading.value.shape == reading.site.shape
    assert reading.relevance(gradient).shape == reading.valid.shape
    word = read(architecture, inputs, target=0)
    step = torch.randn(word.value.shape, generator=torch.Generator().manual_seed(0)).double()
    # Llama's RMSNorms round to float32, where a small step drowns.
    rounds = "RMSNorm" in str(model)
    step *= (1e-3 if rounds else 1e-6) * word.valid[..., None]
    ahead = read(architecture, inputs, readout=readout, target=0, change=lambda w: w + step)
    back = read(architecture, inputs, readout=readout, target=0, change=lambda w: w - step)
    moved = ((ahead.value - back.value) * gradient).sum((1, 2))
    assert torch.allclose(moved, (ahead.output - back.output).detach(), rtol=1e-2, atol=1e-9)


def test_token_types_in_gpt2_are_not_taken_for_words():
    model, inputs = tiny.build("gpt2"), tiny.texts((4,))
    architecture = describe(model)
    expected = model.transformer.wte(inputs["input_ids"])
    assert torch.equal(read(architecture, inputs).value, expected)
