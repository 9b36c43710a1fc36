"""Labels, contrasts and probabilities of every kind of head, each against plain torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import lrputils as lrp
from tests import tiny

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
    ids = inputs["input_ids"]
    with torch.no_grad():
        whole = activation(model(**inputs).logits)[0]
        target = int(whole.argmax())
        expected = []
        for token in range(ids.shape[1]):
            mask = torch.ones_like(ids).index_fill(1, torch.tensor([token]), 0)
            without = activation(model(ids, attention_mask=mask).logits)[0, target]
            expected.append(float(whole[target] - without))
    found = lrp.leave_one_out(model, inputs, output="probability")[0]
    # [CLS] keeps its own query, which a plain mask does not hide either.
    torch.testing.assert_close(found[1:], torch.tensor(expected, dtype=found.dtype)[1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "worse"}, "'worse' is none of good, bad, other"),
        ({"target": lrp.contrast("good", 7)}, "out of range"),
        ({"target": lrp.contrast(0, 1), "output": "difference"}, "a difference already"),
    ],
)
def test_mistakes_are_named(three, options, message):
    with pytest.raises(ValueError, match=message):
        lrp.leave_one_out(three, tiny.texts(), **options)


def test_a_score_has_no_probability():
    model = tiny.build("bert", num_labels=1)
    with pytest.raises(ValueError, match="a score without a probability"):
        lrp.leave_one_out(model, tiny.texts(), output="probability")
    with pytest.raises(ValueError, match="compares a class with itself"):
        lrp.contrast("good", "good")
