"""Labels, contrasts and probabilities of every kind of head, each against plain torch."""

from functools import partial

import pytest
import torch

import lrputils as lrp
from lrputils.model.readout import find_class
from tests import reference, tiny

# What is for a difference the difference of what it is for either, up to rounding.
LINEAR = {name: partial(lrp.attribute, method=name) for name in ("attnlrp", "cp-lrp", "ig")} | {
    "leave_one_out": partial(lrp.leave_one_out, removal="zero"),
    "mask_gradient": partial(lrp.attribute, method="mask-gradient", groups=2),
    "shapley": lambda *a, target: lrp.shapley_values(*a, target=target).scores,
    "curve": lambda *a, target: lrp.perturbation_curves(*a, SCORES, target=target).morf,
}
SCORES = torch.arange(21.0).reshape(3, 7)


@pytest.fixture
def three():
    """A model of three named classes."""
    names = {0: "good", 1: "bad", 2: "other"}
    model = tiny.build("bert", num_labels=3)
    model.config.id2label = names
    return model


def test_a_label_is_its_number(three):
    inputs = tiny.texts()
    for method in ("loo", "attnlrp"):
        by_name = lrp.attribute(three, inputs, method, target="bad")
        assert torch.equal(by_name, lrp.attribute(three, inputs, method, target=1))
        each = lrp.attribute(three, inputs, method, target=["bad", "good", "other"])
        assert torch.equal(each, lrp.attribute(three, inputs, method, target=[1, 0, 2]))


@pytest.mark.parametrize("explain", LINEAR.values(), ids=LINEAR)
def test_a_contrast_explains_the_difference(three, explain):
    inputs = tiny.texts()
    found = explain(three, inputs, target=lrp.contrast("good", "other"))
    first, second = (explain(three, inputs, target=t) for t in (0, 2))
    torch.testing.assert_close(found, first - second, atol=1e-6, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("changes", "activation"),
    [
        ({"num_labels": 3}, lambda logits: logits.softmax(-1)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.sigmoid),
        ({"num_labels": 1, "problem_type": "multi_label_classification"}, torch.sigmoid),
    ],
)
def test_a_probability_is_that_of_the_head(changes, activation):
    model, inputs = tiny.build("bert", **changes), tiny.texts((5,))
    target = reference.without(model, inputs, 0).argmax()
    expected = reference.leave_one_out(model, inputs, read=lambda x: activation(x)[target])
    found = lrp.leave_one_out(model, inputs, output="probability")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("names", "label", "meant"),
    [
        ("1 2 3", "1", 0),  # a name goes before a number, as a label in any spelling
        ("1 2 3", 3, 2),
        ("1 2 3", 2.0, 1),
        ("1 2 3", 0, None),  # where classes are called by numbers, others are none
        ("good bad", "1", 1),
        ("good bad", 1.0, 1),
        ("good bad", True, 1),
        ("good bad", "Bad", 1),
        ("good GOOD", "GOOD", 1),
        ("good bad", 2, None),
        ("good bad", None, None),
    ],
)
def test_what_a_label_means(names, label, meant):
    assert find_class(label, names.split()) == meant


def test_classes_that_no_name_or_score_keeps_from_being_explained(three):
    three.config.id2label = {0: "good", 1: "bad", 2: "bad"}
    assert lrp.leave_one_out(three, tiny.texts(), target="Good").any()
    three.config.problem_type = "regression"
    assert lrp.attribute(three, tiny.texts(), "loo", target=1).any()


def test_a_next_token_s_target_is_a_token():
    model, inputs = tiny.build("gpt2-lm"), tiny.texts((5,))
    by_text, by_number = (lrp.leave_one_out(model, inputs, target=t) for t in ("5", 5))
    assert torch.equal(by_text, by_number)
