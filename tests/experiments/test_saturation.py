"""Paths to leave-one-out, against their two ends."""

import numpy as np
import pytest

import lrputils as lrp
from experiments.recordings import saturation

TEXTS = lrp.load_texts(["a film that is never dull", "a slow and empty evening"])


def test_a_path_begins_with_the_mask_gradient_and_ends_with_loo(clf):
    rows = saturation.measure(clf, TEXTS, degrees=(0.001, 1)).set_index(["id", "degree"])
    for text, name in zip(TEXTS, TEXTS.ids, strict=True):
        inputs = clf.encode([text])
        own = inputs.content_mask[0].numpy()
        slope = lrp.attribute(clf, inputs, "mask-gradient")[0].numpy()[own]
        loo = lrp.leave_one_out(clf, inputs)[0].numpy()[own]
        start, end = (rows.scores[name, degree] for degree in (0.001, 1))
        assert (np.isnan(end) == ~own).all()
        np.testing.assert_allclose(end[own], loo, atol=1e-5)
        np.testing.assert_allclose(start[own] / 0.001, slope, rtol=0.02, atol=0.02)
        assert abs(slope - loo).max() > 0.1


@pytest.mark.parametrize("wrong", [(0,), (1.1,)])
def test_what_cannot_be_measured_is_refused(clf, wrong):
    with pytest.raises(ValueError, match="degrees="):
        saturation.measure(clf, TEXTS, degrees=wrong)
