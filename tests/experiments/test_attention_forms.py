"""The same attention in other forms: the function stays, and each form has the rules it claims.

And as one unit: what its factors get does not depend on how the unit is computed.
"""

import pytest
import torch

import lrputils as lrp
from experiments import attention_forms as rf
from experiments import products
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CANONISED_LRP, CP_LRP, GRADIENT
from lrputils.propagation.rules import PRODUCT, UNITS, path_mean
from tests import reference, tiny

SAME = list(rf.FORMS.values())[:6]
CANONISED = {unit: CANONISED_LRP.but(attention=unit) for unit in UNITS}


def relevance(model, inputs, form, composite=ATTN_LRP):
    with rf.refactored(model, form, composite) as architecture:
        reading = read(architecture, inputs, target=1)
        return reading.relevance(reading.gradient()), reading.output.detach()


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_the_function_and_what_depends_on_it_alone_stay(name, form):
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for rule in (GRADIENT, CP_LRP):
        kept, plain = relevance(model, inputs, rf.standard, rule)
        scores, logits = relevance(model, inputs, form, rule)
        torch.testing.assert_close(logits, plain, rtol=0, atol=1e-10)
        torch.testing.assert_close(scores, kept, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "mpnet", "llama"])
def test_the_standard_form_is_what_the_package_propagates(name):
    model, inputs = tiny.build(name), tiny.texts()
    for method in (ATTN_LRP, CP_LRP):
        expected = lrp.attribute(model, inputs, method, target=1)
        scores, _ = relevance(model, inputs, rf.standard, method)
        torch.testing.assert_close(scores.float(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
def test_which_forms_change_attnlrp(form):
    model, inputs = tiny.build("bert"), tiny.texts()
    kept, _ = relevance(model, inputs, rf.standard)
    scores, _ = relevance(model, inputs, form)
    moved = float((scores - kept).abs().max())
    assert (moved < 1e-9) == (form in SAME)
    assert moved < 1e-9 or moved > 1e-3


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


# --- transformers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", rf.FORMS.values(), ids=lambda form: form.__name__)
@pytest.mark.parametrize("name", ["bert", "mpnet"])
def test_no_form_of_attention_changes_the_answer(name, form):
    """`test_which_forms_change_attnlrp`: six of these forms change AttnLRP's."""
    model, inputs = tiny.build(name), tiny.inputs_for(name)
    for unit, rule in CANONISED.items():
        expected = lrp.attribute(model, inputs, "canonised-lrp", target=1, unit=unit)
        scores, _ = relevance(model, inputs, form, rule)
        torch.testing.assert_close(scores.float(), expected, rtol=1e-5, atol=1e-6)
        kept, _ = relevance(model, inputs, rf.standard, rule)
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
        parts = {"value": of_v, "query": of_q, "key": of_k}
        return {
            path: reference._back(getattr(maps, path), self.x, part, eps)
            for path, part in parts.items()
        }


def midpoints(steps: int = 400):
    return [((i + 0.5) / steps, 1 / steps) for i in range(steps)]


@pytest.mark.parametrize(("unit", "tolerance"), [("thirds", 1e-8), ("path", 1e-4)])
def test_both_units_against_their_definitions(monkeypatch, unit, tolerance):
    monkeypatch.setitem(path_mean.__kwdefaults__, "nodes", 32)
    model, inputs = tiny.build("bert", num_hidden_layers=2), tiny.texts(lengths=(5,))
    monkeypatch.setattr(Slow, "unit", unit)
    monkeypatch.setattr(reference, "_Layer", Slow)
    _, slow = reference.bert(model, inputs["input_ids"][0], target=1)
    fast, _ = relevance(model, inputs, rf.standard, CANONISED[unit])
    torch.testing.assert_close(fast[0], slow, rtol=tolerance, atol=tolerance)
