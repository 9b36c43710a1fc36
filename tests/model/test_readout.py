"""Which number is explained, and the tensor it is read at."""

import pytest
import torch
from torch import nn

from lrputils.model.architectures import describe
from lrputils.model.readout import READOUTS, read, readouts
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


@pytest.mark.parametrize("name", tiny.NAMES)
def test_the_sum_adds_what_the_words_leave_out(name):
    """Positions and types; rotary positions enter in the attention."""
    architecture, inputs = describe(tiny.build(name)), tiny.inputs_for(name)
    word, total = (read(architecture, inputs, readout=place).value for place in ("word", "sum"))
    assert bool((total - word).any()) != ("RMSNorm" in str(architecture.model))


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


_SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZE |= {"intermediate_size": 48, "pad_token_id": 0, "num_labels": 3}
_OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
_BART = {"vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
_BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
IDS = torch.randint(4, 40, (6, 6), generator=torch.Generator().manual_seed(0))
NOBODY = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def _bert(part):
    place = part.position_embeddings.weight[: IDS.shape[1]]
    return part.word_embeddings(IDS) + place + part.token_type_embeddings.weight[0]


def _opt(part):
    return part.embed_tokens(IDS) + part.embed_positions.weight[2 : 2 + IDS.shape[1]]


# Models of no family: their class, settings, where the sum is made, how, and which norm follows.
OTHERS = {
    "DeBERTa": ("Deberta", {"type_vocab_size": 2}, "deberta.embeddings", _bert, "LayerNorm"),
    "ConvBERT": ("ConvBert", {"embedding_size": 32}, "convbert.embeddings", _bert, "LayerNorm"),
    "OPT": ("OPT", _OPT, "model.decoder", _opt, None),
    "GPT-NeoX": ("GPTNeoX", {}, "gpt_neox", lambda part: part.embed_in(IDS), None),
    "ModernBERT": (
        "ModernBert",
        {},
        "model.embeddings",
        lambda part: part.tok_embeddings(IDS),
        "norm",
    ),
    "BLOOM": (
        "Bloom",
        {"n_layer": 2, "n_head": 4},
        "transformer",
        lambda part: part.word_embeddings(IDS),
        "word_embeddings_layernorm",
    ),
    "Gemma 2": (
        "Gemma2",
        {"num_key_value_heads": 2, "head_dim": 8},
        "model",
        lambda part: part.embed_tokens(IDS),
        None,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_of_other_models_the_sum_and_its_norm_are_measured(name):
    kind, settings, path, sum_of, norm = OTHERS[name]
    model = tiny.made(kind, **_SIZE | settings)
    part = model.get_submodule(path)
    expected = {"word": model.get_input_embeddings()(IDS), "sum": sum_of(part)}
    if norm is not None:
        expected["post-norm"] = part.get_submodule(norm)(expected["sum"])
    assert readouts(model) == [*expected]
    logits = model(**NOBODY).logits
    for place, tensor in expected.items():
        reading = read(describe(model), NOBODY, readout=place)
        torch.testing.assert_close(reading.value, tensor)
        torch.testing.assert_close(reading.logits, logits)
        assert reading.relevance(reading.gradient()).any(-1).all()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Bart", _BART),  # its decoder reads the words once more
        (
            "MobileBert",
            _SIZE | {"embedding_size": 32, "intra_bottleneck_size": 32},
        ),  # and neighbours
        ("XLNet", {"vocab_size": 40, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
    ],
)
def test_where_no_such_sum_is_read_there_are_the_words(kind, settings):
    model = tiny.made(kind, **settings)
    assert readouts(model) == ["word"]
    with pytest.raises(ValueError, match=r"no read-out 'sum': use one of \['word'\]"):
        read(describe(model), NOBODY, readout="sum")


class _Bypassed(nn.Module):
    """An encoder that adds the sum once more after its norm."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, hidden, *args, **kwargs):
        return self.inner(hidden + self.sum, *args, **kwargs)


def test_what_goes_around_a_norm_is_not_read_after_it():
    model = tiny.made("Deberta", **_SIZE)
    embeddings, encoder = model.deberta.embeddings, _Bypassed(model.deberta.encoder).eval()
    model.deberta.encoder = encoder
    embeddings.LayerNorm.register_forward_pre_hook(lambda _, args: setattr(encoder, "sum", args[0]))
    assert readouts(model) == ["word", "sum"]


def test_token_types_in_gpt2_are_not_taken_for_words():
    model, inputs = tiny.build("gpt2"), tiny.texts((4,))
    architecture = describe(model)
    expected = model.transformer.wte(inputs["input_ids"])
    assert torch.equal(read(architecture, inputs).value, expected)
