"""The mask gradient against automatic differentiation of the gates, and against exact removal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lrputils as lrp
from lrputils.model.architectures import describe
from lrputils.model.attention import routed
from lrputils.model.forwards import replaced
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.mask_gradient import exact_block, first_order, mask_gradient
from tests import tiny


def gate_gradient(model, inputs, *, own_row):
    """∂f/∂m at m = 1, with A_ji = m_i exp(Z_ji) / Σ_k m_k exp(Z_jk), one text alone."""
    architecture = describe(model)
    if "input_ids" in inputs:
        tokens = inputs["input_ids"].shape[1]
    else:
        tokens = architecture.word_embeddings(**inputs).shape[1]
    gates = torch.ones(tokens, dtype=torch.float64, requires_grad=True)
    readout = 0 if architecture.readout_position == "first" else tokens - 1
    # A gate that its own query does not see is held at its value there.
    held = torch.eye(tokens, dtype=torch.bool)
    held[readout, readout] = False
    held = held & (not own_row)

    def gated(call):
        weights = call.weights() * torch.where(held, 1.0, gates)
        return call.combined(weights / weights.sum(-1, keepdim=True)), None

    with routed(model, gated):
        logits = model(**architecture.arguments(inputs)).logits[0]
    logits = logits[-1] if logits.dim() == 2 else logits
    return torch.autograd.grad(logits[logits.argmax()], gates)[0]


@pytest.mark.parametrize("own_row", [False, True])
@pytest.mark.parametrize("name", tiny.NAMES)
def test_first_order_is_the_gradient_of_the_gates(name, own_row):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    scores = mask_gradient(model, inputs, form="first-order", own_row=own_row)
    for row in range(3):
        one = tiny.row(inputs, row)
        expected = gate_gradient(model, one, own_row=own_row)
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(scores[row, : len(expected)], expected, rtol=1e-10, atol=1e-10)


def test_exact_block_is_leave_one_out_where_the_rest_is_linear():
    model = tiny.build("bert", num_hidden_layers=1)
    layer = model.bert.encoder.layer[0]
    inputs = tiny.texts((7, 4, 5))
    through = dict.fromkeys(
        (
            layer.attention.output.LayerNorm,
            layer.output.LayerNorm,
            layer.intermediate.intermediate_act_fn,
            model.bert.pooler.activation,
        ),
        lambda forward, x: x,
    )
    with replaced(through):
        exact = leave_one_out(model, inputs)
        estimate = mask_gradient(model, inputs)
        rough = mask_gradient(model, inputs, form="first-order")
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(estimate, exact, rtol=1e-10, atol=1e-10)
    assert (rough - exact).abs().max() > 1e-3


@pytest.mark.parametrize("queries", [1, 5])
def test_the_block_forms_equal_their_equations(queries):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 3, queries, 6, generator=generator, dtype=torch.float64).softmax(-1)
    values = torch.randn(2, 3, 6, 4, generator=generator, dtype=torch.float64)
    received = torch.randn(2, 3, queries, 4, generator=generator, dtype=torch.float64)
    products = received @ values.transpose(-2, -1)
    output = weights @ values
    for i in range(6):
        effect = ((values[:, :, i : i + 1] - output) * received).sum(-1)
        share = weights[..., i]
        torch.testing.assert_close(first_order(weights, products)[..., i], share * effect)
        torch.testing.assert_close(
            exact_block(weights, products)[..., i], share / (1 - share) * effect
        )
        left = weights.clone()
        left[..., i] = 0
        without = (left / left.sum(-1, keepdim=True)) @ values
        torch.testing.assert_close(
            exact_block(weights, products)[..., i], ((output - without) * received).sum(-1)
        )


def test_a_weight_close_to_one_costs_no_precision():
    logits = torch.tensor([[[[20.0, 1.0, 0.5, 2.0]]]], dtype=torch.float64)
    products = torch.tensor([[[[1.0, -3.0, 2.0, 0.25]]]], dtype=torch.float64)
    exact = exact_block(logits.softmax(-1), products)
    rounded = exact_block(logits.float().softmax(-1), products.float())
    torch.testing.assert_close(rounded.double(), exact, rtol=1e-5, atol=1e-12)


def test_a_query_left_without_a_key_receives_nothing():
    one = torch.ones(1, 1, 1, 1)
    assert exact_block(one, 3 * one).item() == 3
    model, inputs = tiny.build("gpt2", num_hidden_layers=1), tiny.texts((1,))
    assert torch.isfinite(mask_gradient(model, inputs)).all()


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["bert", "roberta", "albert", "gpt2", "llama"]),
    st.sampled_from(["exact-block", "first-order"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_batch_order_and_padding_change_nothing(name, form, lengths, random):
    model, inputs = tiny.build(name), tiny.texts(tuple(lengths))
    scores = mask_gradient(model, inputs, form=form)
    assert not scores[~inputs["attention_mask"].bool()].any()
    for row, length in enumerate(lengths):
        alone = mask_gradient(model, tiny.row(inputs, row), form=form)
        torch.testing.assert_close(scores[row, :length], alone[0], rtol=1e-9, atol=1e-9)
    order = list(range(len(lengths)))
    random.shuffle(order)
    shuffled = {key: value[order] for key, value in inputs.items()}
    again = mask_gradient(model, shuffled, form=form)
    torch.testing.assert_close(again, scores[order], rtol=1e-9, atol=1e-9)


def test_padding_on_the_left_changes_nothing():
    for name in ("gpt2", "llama"):  # an encoder reads its first column, padding or not
        model, right = tiny.build(name), tiny.texts((7, 4))
        left = {key: torch.stack([v[0], v[1].roll(3)]) for key, v in right.items()}
        scores = mask_gradient(model, left)
        torch.testing.assert_close(scores[1].roll(-3), mask_gradient(model, right)[1])


def test_parts_of_a_batch_equal_the_whole(monkeypatch):
    model, inputs = tiny.build("gpt2"), tiny.texts((7, 4, 5))
    whole = mask_gradient(model, inputs)
    monkeypatch.setattr("lrputils.removal.mask_gradient._CELLS", 1)
    torch.testing.assert_close(mask_gradient(model, inputs), whole)


def test_precision_of_the_model_is_the_precision_of_the_scores():
    inputs = tiny.texts()
    double = mask_gradient(tiny.build("bert"), inputs)
    single = mask_gradient(tiny.build("bert", dtype=torch.float32), inputs)
    assert (double.dtype, single.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(single.double(), double, rtol=1e-3, atol=1e-5)


def test_an_unknown_form_is_named():
    with pytest.raises(ValueError, match="'second-order' is not one of"):
        mask_gradient(tiny.build("bert"), tiny.texts(), form="second-order")


def test_real_sentences_agree_with_leave_one_out(data_dir, models_dir):
    clf = lrp.load_classifier(models_dir / "minilm-sst2")
    inputs = clf.encode(lrp.load_texts(data_dir / "sst2", limit=20).texts)
    exact = leave_one_out(clf.model, inputs)

    def agreement(**options):
        scores = mask_gradient(clf.model, inputs, **options)
        return lrp.pearson(scores, exact, where=inputs.content_mask).mean()

    assert agreement() > 0.6
    assert agreement() > agreement(own_row=True)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(mode):
    model, inputs = tiny.build("bert"), tiny.texts()
    expected = mask_gradient(model, inputs)
    with mode():
        assert torch.equal(mask_gradient(model, inputs), expected)
