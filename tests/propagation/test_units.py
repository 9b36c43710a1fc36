"""Attention as one unit: what its factors get does not depend on how the unit is computed."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils import products
from lrputils.attribution.relevance import lrp_everywhere
from lrputils.linear_attention import LinearAttention, Setting, attnlrp
from lrputils.model.architectures import describe
from lrputils.model.attention import Recorder
from lrputils.model.readout import FIRST_BLOCK, read
from lrputils.propagation import refactored as rf
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, GRADIENT, installed, propagating
from lrputils.propagation.rules import PRODUCT, UNITS, equal_shares, path_mean
from lrputils.removal.mask_gradient import mask_gradient
from tests import reference, tiny
from tests.gauge import CHANGES, reparameterised

CANONISED = {"thirds": "canonised-lrp", "path": "canonised-path"}


def factors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]


def relevance_of(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[float]:
    gradients = torch.autograd.grad(output.sum(), inputs)
    return [float((x.detach() * g).sum()) for x, g in zip(inputs, gradients, strict=True)]


def multiplied(node: products.Node, values: dict[str, torch.Tensor], split=None) -> torch.Tensor:
    """The product in the tree's order; `split` is a rule for each binary product in it."""
    if isinstance(node, products.Factor):
        return values[node.name]
    left, right = (multiplied(side, values, split) for side in (node.left, node.right))
    return torch.mul(*(split(left, right) if split else (left, right)))


# --- chapter 1: products --------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_every_bracketing_of_a_product_gives_the_k_ary_split(unit):
    halved = set()
    for tree in products.bracketings(products.symbols([2, -3, 4, 5])):
        names = [leaf.name for leaf in products.leaves(tree)]
        given = factors(2, -3, 4, 5)

        def in_this_order(*x, tree=tree, names=names):
            return multiplied(tree, dict(zip(names, x, strict=True)))

        found = relevance_of(UNITS[unit](in_this_order, *given), given)
        assert found == pytest.approx([float(tree.value) / len(names)] * len(names), rel=1e-12)
        values = dict(zip(names, given, strict=True))
        halved.add(tuple(relevance_of(multiplied(tree, values, PRODUCT["halved"]), given)))
    assert len(halved) > 1  # AttnLRP's rule: an answer a bracketing


# --- chapter 2: linear attention ------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_linear_attention_gives_the_three_way_split_in_both_orders(unit):
    torch.manual_seed(0)
    network = LinearAttention(Setting(), tokens=6, dim=4).double()
    images = torch.rand(3, 6, dtype=torch.float64)
    answers, halved = [], []
    for order in ("(QKᵀ)V", "Q(KᵀV)"):

        def attended(q, k, v, order=order):
            return (q @ k.mT) @ v if order == "(QKᵀ)V" else q @ (k.mT @ v)

        pixels = network.scaled(images).detach().requires_grad_()
        logits = network.classify(UNITS[unit](attended, *network.project(pixels)))
        logits.max(1).values.sum().backward()
        answers.append((pixels * pixels.grad).detach())
        halved.append(attnlrp(network, images, order))
    expected = attnlrp(network, images, "3-ary")
    for answer in answers:
        torch.testing.assert_close(answer, expected, rtol=1e-9, atol=1e-12)
    assert float((halved[0] - halved[1]).abs().max()) > 1e-3 * float(expected.abs().max())


# --- transformers ---------------------------------------------------------------------------------


def through(model, inputs, form, rule):
    with rf.refactored(model, form, rf.BLOCK_RULES[rule]) as architecture:
        reading = read(architecture, inputs, target=1)
        return reading.relevance(reading.gradient())


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["bert", "mpnet", "llama"])
def test_no_form_of_attention_changes_the_answer(name, form):
    """`test_refactored.test_which_forms_change_attnlrp`: six of these forms change AttnLRP's."""
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for unit, rule in CANONISED.items():
        expected = lrp.attribute(model, inputs, "canonised-lrp", target=1, unit=unit)
        scores = through(model, inputs, form, rule)
        torch.testing.assert_close(scores.float(), expected, rtol=1e-5, atol=1e-6)
        kept = through(model, inputs, rf.standard, rule)
        torch.testing.assert_close(scores, kept, rtol=1e-8, atol=1e-9)


def softmax_jacobian(weights):
    return torch.diag(weights) - torch.outer(weights, weights)


class Slow(reference._Layer):
    """One block's attention by the unit's definition, query by query, Jacobian by Jacobian."""

    unit = "thirds"

    def through_attention(self, relevance, rule, eps):
        parts = {"thirds": [(1.0, 1 / 3)], "path": midpoints()}[self.unit]
        of_q, of_k, of_v = (torch.zeros_like(self.q) for _ in range(3))
        for c in self.columns:
            q, k, v = self.q[:, c], self.k[:, c], self.v[:, c]
            flowing = relevance[:, c] / (torch.softmax(self.scale * q @ k.T, 1) @ v)
            for j, g in enumerate(flowing):
                for t, share in parts:
                    weights = torch.softmax(self.scale * t * t * (k @ q[j]), 0)
                    of_z = softmax_jacobian(weights) @ (t * v @ g)
                    of_v[:, c] += share * v * torch.outer(weights, g)
                    of_q[j, c] += share * q[j] * (self.scale * t * k.T @ of_z)
                    of_k[:, c] += share * k * torch.outer(of_z, self.scale * t * q[j])
        maps = self.block.attention.self
        pairs = ((maps.value, of_v), (maps.query, of_q), (maps.key, of_k))
        return sum(reference._back(linear, self.x, part, eps) for linear, part in pairs)


def midpoints(steps: int = 400):
    return [((i + 0.5) / steps, 1 / steps) for i in range(steps)]


@pytest.mark.parametrize(("unit", "tolerance"), [("thirds", 1e-8), ("path", 1e-4)])
def test_both_units_against_their_definitions(monkeypatch, unit, tolerance):
    monkeypatch.setitem(path_mean.__kwdefaults__, "nodes", 32)
    model, inputs = tiny.build("bert", num_hidden_layers=2), tiny.texts(lengths=(5,))
    monkeypatch.setattr(Slow, "unit", unit)
    monkeypatch.setattr(reference, "_Layer", Slow)
    _, slow = reference.bert(model, inputs["input_ids"][0], target=1)
    fast = through(model, inputs, rf.standard, CANONISED[unit])
    torch.testing.assert_close(fast[0], slow, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "llama"])
def test_path_conserves_without_biases_and_thirds_do_not(monkeypatch, name):
    monkeypatch.setitem(path_mean.__kwdefaults__, "nodes", 64)
    model, inputs = tiny.without_biases(tiny.build(name)), tiny.inputs_for(name)
    gaps = {}
    for unit in UNITS:
        with propagating(model, ATTN_LRP.but(attention=unit)) as architecture:
            reading = read(architecture, inputs, readout=FIRST_BLOCK)
            scores = reading.relevance(reading.gradient())
        gaps[unit] = float((scores.sum(1) / reading.output.detach() - 1).abs().max())
    assert gaps["path"] < 1e-8
    assert gaps["thirds"] > 1e-2


@pytest.mark.parametrize("unit", UNITS)
def test_a_map_at_the_sum_does_not_see_the_gauge(unit):
    model, inputs = tiny.build("bert"), tiny.texts()
    kept = lrp.attribute(model, inputs, "canonised-lrp", target=1, unit=unit, readout="sum")
    for change in CHANGES:
        other = reparameterised(model, change)
        scores = lrp.attribute(other, inputs, "canonised-lrp", target=1, unit=unit, readout="sum")
        torch.testing.assert_close(scores, kept, rtol=1e-4, atol=1e-5)


def test_a_unit_gives_the_plain_value_and_path_is_integrated_gradients():
    x, y = factors(0.7, -1.3)

    def function(x, y):
        return torch.tanh(x * y) + x

    for unit in UNITS.values():
        assert torch.equal(unit(function, x, y), function(x, y))
    (dx, dy) = torch.autograd.grad(path_mean(function, x, y, nodes=16), [x, y])
    steps = [(t * x.detach(), t * y.detach()) for t, _ in midpoints(2000)]
    slow = [torch.autograd.functional.jacobian(function, step) for step in steps]
    assert float(dx) == pytest.approx(sum(float(s[0]) for s in slow) / 2000, abs=1e-6)
    assert float(dy) == pytest.approx(sum(float(s[1]) for s in slow) / 2000, abs=1e-6)
    assert float((x * dx + y * dy).detach()) == pytest.approx(
        float(function(x, y).detach()), abs=1e-9
    )
    assert relevance_of(equal_shares(torch.mul, x, y), [x, y]) == pytest.approx([-0.455, -0.455])


# --- read at the blocks ---------------------------------------------------------------------------


def at_blocks(model, inputs, composite, target=1):
    found = lrp_everywhere(model, inputs, target=target, composite=composite, blocks=True)
    return found["blocks"]


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "llama", "vit"])
def test_the_plain_gradient_read_at_the_blocks_is_the_mask_gradient(name):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    found = at_blocks(model, inputs, GRADIENT, target=None)
    torch.testing.assert_close(found, mask_gradient(model, inputs), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("composite", [ATTN_LRP, CP_LRP, ATTN_LRP.but(attention="path")])
def test_relevance_at_the_blocks_against_removing_each_key(composite):
    """Slow: leave each key out of each query's sum, and weigh the change of O_j by what flows."""
    model, inputs = tiny.build("bert"), tiny.texts(lengths=(5,))
    with installed(describe(model), composite.rule) as route:
        route.function = recorder = Recorder(route.function)
        reading = read(describe(model), inputs, target=1)
    flowing = torch.autograd.grad(reading.output.sum(), recorder.outputs)
    scores = torch.zeros(5, dtype=torch.float64)
    for call, gradient in zip(recorder.calls, flowing, strict=True):
        for head in range(call.query.shape[1]):
            q, k, v = (factor[0, head] for factor in call.factors)
            for j in range(5):
                g, z = gradient[0, j, head], call.scaling * k @ q[j]
                for i in range(5):
                    others = torch.arange(5) != i
                    change = torch.softmax(z, 0) @ v - torch.softmax(z[others], 0) @ v[others]
                    scores[i] += 0 if i == j != 0 else change @ g
    seen = at_blocks(model, inputs, composite)
    torch.testing.assert_close(seen[0], scores, rtol=1e-9, atol=1e-11)


def test_the_method_reads_its_unit_at_the_blocks():
    model, inputs = tiny.build("bert"), tiny.texts()
    found = lrp.attribute(model, inputs, "canonised-lrp", readout="blocks", target=1)
    expected = at_blocks(model, inputs, ATTN_LRP.but(attention="thirds"))
    torch.testing.assert_close(found, expected.float())


# --- what other names stand for -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "same"), [("bert", True), ("mpnet", True), ("llama", False)])
def test_libragrad_is_cp_lrp_where_nothing_is_gated(name, same):
    """LibraGrad holds A, the deviation and the activation's gate, and halves gated products."""
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    libra = lrp.attribute(model, inputs, CP_LRP.but(product="halved"), target=1)
    assert torch.equal(libra, lrp.attribute(model, inputs, "cp-lrp", target=1)) == same


def test_the_relevance_of_position_and_word_is_the_map_at_the_sum():
    """PA-LRP, Eq. 5: at the sum of learned embeddings each summand keeps its share."""
    model, inputs = tiny.build("bert"), tiny.texts(lengths=(6,))
    embeddings = model.bert.embeddings
    with propagating(model, ATTN_LRP) as architecture:
        reading = read(architecture, inputs, target=1, readout="sum")
        flowing = reading.gradient()[0]
    others = embeddings.position_embeddings.weight[:6] + embeddings.token_type_embeddings.weight[0]
    word, whole = (
        lrp.attribute(model, inputs, "attnlrp", target=1, readout=place)[0]
        for place in ("word", "sum")
    )
    positions = (others * flowing).sum(-1).detach().float()
    torch.testing.assert_close(word + positions, whole, rtol=1e-5, atol=1e-6)
