"""Coefficients fitted on exact maps: what they find, and what the mask gradient does with them."""

from __future__ import annotations

import pytest
import torch

import lrputils as lrp
from lrputils.removal.calibration import fitted
from lrputils.removal.combined import Calibration, at_one_size, plain

TEXTS = ["a film that is never dull", "a slow and empty evening", "dull"]


def maps(count: int, coefficients: tuple[float, ...], noise: float = 0.0):
    """Texts whose exact map is these coefficients of two random maps, each of a size of its own."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for number in range(count):
        where = torch.ones(1, 20, dtype=torch.bool)
        whole, grouped = random(1, 20) * 10.0**number, random(1, 20)
        shapes = at_one_size(whole, grouped, where, 2)
        exact = shapes @ shapes.new_tensor(coefficients)
        yield whole, grouped, exact * (1 + noise * random(1, 20)), where


def test_texts_decide_and_few_texts_stay_near_the_plain_mean():
    truth = (0.9, 0.1, 0.0, 0.0)
    many, one = (fitted(list(maps(count, truth)), 2).coefficients for count in (6, 1))
    assert many[0] / many[1] > 4
    assert fitted([], 2).coefficients == pytest.approx(plain(2))
    still = fitted(list(maps(6, plain(2))), 2).coefficients
    assert still[0] == pytest.approx(still[1], rel=0.1)
    assert one != many


def test_the_mask_gradient_takes_the_coefficients():
    clf = lrp.load_classifier()
    found = lrp.calibrate(clf, TEXTS, batch_size=2)
    assert (found.groups, found.texts) == (2, 3)
    inputs = clf.encode(TEXTS[:1])
    where = inputs.content_mask
    one = lrp.attribute(clf, inputs, "mask-gradient")
    two = lrp.attribute(clf, inputs, "mask-gradient", groups=2)
    expected = at_one_size(one, two, where, 2) @ torch.tensor(found.coefficients)
    scores = lrp.attribute(clf, inputs, "mask-gradient", calibration=found)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    mean = lrp.attribute(clf, inputs, "mask-gradient", groups=2, with_open=True)
    same = Calibration(plain(2), 2, 0)
    again = lrp.attribute(clf, inputs, "mask-gradient", calibration=same)
    torch.testing.assert_close(mean, again)


def test_no_texts_are_refused():
    with pytest.raises(ValueError, match="a calibration needs texts"):
        lrp.calibrate(lrp.load_classifier(), [])
