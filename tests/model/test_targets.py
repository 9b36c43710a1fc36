"""Labels, contrasts and probabilities of every kind of head, each against plain torch."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils.model.readout import resolve_target
from tests import tiny

# Methods whose map of a difference is the difference of their maps, up to rounding.
LINEAR = ("loo", "grad-x-input", "attnlrp", "cp-lrp", "ig", "mask-gradient")


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


@pytest.mark.parametrize("method", LINEAR)
def test_a_contrast_explains_the_difference(three, method):
    inputs = tiny.texts()
    found = lrp.attribute(three, inputs, method, target=lrp.contrast("good", "other"))
    first, second = (lrp.attribute(three, inputs, method, target=t) for t in (0, 2))
    torch.testing.assert_close(found, first - second, atol=1e-6, rtol=1e-5)


def test_a_contrast_is_followed_everywhere(three):
    inputs, target = tiny.texts(), lrp.contrast("good", "other")
    pair = resolve_target(target, torch.zeros(3, 3), three)
    assert pair.tolist() == [[0, 2]] * 3

    def difference(function, *args, **options):
        ends = [function(three, inputs, *args, target=t, **options) for t in (0, 2)]
        return function(three, inputs, *args, target=target, **options), ends[0] - ends[1]

    def curve(*args, **options):
        return lrp.perturbation_curves(*args, **options).morf

    scores = lrp.leave_one_out(three, inputs, target=target)
    for found, expected in (
        difference(curve, scores),
        difference(lrp.leave_one_out, removal="zero"),
        difference(lrp.attribute, "mask-gradient", groups=2),
    ):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5, equal_nan=True)
    shapley = [lrp.shapley_values(three, inputs, target=t).scores for t in (target, 0, 2)]
    torch.testing.assert_close(shapley[0], shapley[1] - shapley[2], atol=1e-6, rtol=1e-5)


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
