"""The mask gradient against automatic differentiation of the gates, and against exact removal."""

import pytest
import torch

import lrputils as lrp
from lrputils.attribution.methods import lrp_at_blocks
from lrputils.model.forwards import replaced
from lrputils.model.operations import routed
from lrputils.propagation.composites import GRADIENT
from lrputils.removal.mask_gradient import FORMS, added, exact_block, mask_gradient
from tests import tiny


def slow_scores(model, inputs, gone, gate, form):
    """Scores of the tokens `gone` of one text, from the definition of each form, sum by sum.

    The state is that in which all of them are closed to `gate`; no row of it is its own token's.
    """
    arguments = lrp.describe(model).arguments(inputs)
    tokens = arguments["input_ids"].shape[1]
    closed = torch.zeros(tokens, dtype=torch.float64)
    closed[gone] = 1 - gate
    m, others = (1 - closed).requires_grad_(), ~torch.eye(tokens, dtype=torch.bool)
    kept = []

    def attention(call):
        e = (call.scores() - call.scores().amax(-1, keepdim=True)).exp() * call.seen()
        if form == "first-order":
            weights = e * torch.where(others, m, 1.0)
        else:
            inside = e * torch.where(others & (closed > 0), 0.0, 1.0)
            weights = gate * normalised(e) + (1 - gate) * normalised(inside)
        output = call.combined(normalised(weights)) + 0 * m.sum()  # in the graph
        kept.append((e.detach(), call.value.detach(), output))
        return output, None

    with routed(model, attention):
        logits = model(**arguments).logits[0]
    answer = logits[model(**arguments).logits[0].argmax()]
    if form == "first-order":
        return torch.autograd.grad(answer, m)[0]
    scores = torch.zeros(tokens, dtype=torch.float64)
    received = torch.autograd.grad(answer, [output for *_, output in kept])
    for (e, value, _), g in zip(kept, received, strict=True):
        for i in gone:
            rest = [k for k in range(tokens) if k != i]
            for j in rest:
                s = e[0, :, j, rest].sum(-1)
                mean = (e[0, :, j, rest, None] * value[0][:, rest]).sum(1) / s[:, None]
                own = e[0, :, j, i] / (e[0, :, j, i] + s)
                scores[i] += (own[:, None] * (value[0, :, i] - mean) * g[0, j]).sum()
    return scores


def normalised(weights):
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(("groups", "gate"), [(1, 0.5), (2, 0.2), (9, 0.5)])
@pytest.mark.parametrize("form", FORMS)
def test_half_removal_is_its_definition(form, groups, gate):
    model, inputs = tiny.build("bert"), tiny.texts((7, 4, 5))
    scores = mask_gradient(model, inputs, form=form, groups=groups, gate=gate)
    for row, length in enumerate((7, 4, 5)):
        one = tiny.row(inputs, row)
        for group in range(groups):
            gone = list(range(1, length - 1))[group::groups]
            if gone:
                expected = slow_scores(model, one, gone, gate, form)[gone]
                assert expected.abs().max() > 1e-4
                torch.testing.assert_close(scores[row, gone], expected, rtol=1e-9, atol=1e-9)


def test_with_open_gates_it_is_the_mean_of_both_maps_at_one_size():
    """In logits: the weights are the inverse sizes, times 1 and half of the number of groups."""
    model, inputs = tiny.build("bert"), tiny.texts((7, 4, 5))
    whole = mask_gradient(model, inputs)
    own = ~inputs["special_tokens_mask"].bool() & inputs["attention_mask"].bool()
    for groups, weight in ((2, 1.0), (4, 2.0)):
        some = mask_gradient(model, inputs, groups=groups)
        found = mask_gradient(model, inputs, groups=groups, with_open=True)
        for row in range(3):
            w, v = 1 / whole[row, own[row]].abs().mean(), weight / some[row, own[row]].abs().mean()
            expected = (w * whole[row] + v * some[row]) / (w + v)
            torch.testing.assert_close(found[row], expected, rtol=1e-10, atol=1e-12)


def test_a_map_that_runs_away_loses_its_weight():
    where = torch.ones(1, 4, dtype=torch.bool)
    sane = torch.tensor([[1.0, -2.0, 0.5, 0.5]], dtype=torch.float64)
    for large in (1e6, 0.0):
        found = added(large * sane.flip(1), sane, where, 2)
        assert found.isfinite().all()
        assert found.abs().sum() < 2 * sane.abs().sum()


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
        exact = lrp.leave_one_out(model, inputs)
        estimate = mask_gradient(model, inputs)
        rough = mask_gradient(model, inputs, form="first-order")
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(estimate, exact, rtol=1e-10, atol=1e-10)
    assert (rough - exact).abs().max() > 1e-3


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


def test_parts_of_a_batch_equal_the_whole(monkeypatch):
    model, inputs = tiny.build("gpt2"), tiny.texts()
    whole, groups = mask_gradient(model, inputs), mask_gradient(model, inputs, groups=3)
    found = mask_gradient(model, inputs, groups=3, batch_tokens=7)
    torch.testing.assert_close(found, groups, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr("lrputils.removal.mask_gradient._CELLS", 1)
    torch.testing.assert_close(mask_gradient(model, inputs), whole)


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "llama", "vit"])
def test_it_is_the_plain_gradient_read_at_the_blocks(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    found = lrp_at_blocks(model, inputs, GRADIENT, target=None)
    torch.testing.assert_close(found, mask_gradient(model, inputs), rtol=1e-9, atol=1e-10)
