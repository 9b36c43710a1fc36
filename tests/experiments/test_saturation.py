"""Paths to leave-one-out, against their two ends; exact passes moved between texts, by hand."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments import saturation as analysis
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


def test_passes_go_where_they_buy_most():
    """Twelve texts; a pass at one of the six confident ones buys 0.1 of r, elsewhere 0.02."""
    rows = [
        {"id": str(text), "logit": text // 2, "order": order, "passes": k, "r": k * buys}
        for text, order, k in product(range(12), ("estimate", "chance"), range(7))
        for buys in [(0.1 if text >= 6 else 0.02) * (order == "estimate")]
    ]
    found = analysis.move_passes(pd.DataFrame(rows), 3)
    assert found.moved == 3
    expected = (3 * 0.1 - 3 * 0.02) / 2
    assert found[["chosen", "value"]].tolist() == pytest.approx([expected] * 2)
    assert found.chance == pytest.approx(3 * (0.1 + 0.02) / 2)


def test_exact_passes_end_in_loo():
    bought = analysis.buy_exact("minilm-sst2", most=60)
    last = bought[bought.passes == 60]
    assert last.r.min() == pytest.approx(1)
    first = bought[bought.passes == 0].set_index(["id", "order"]).r.unstack()
    assert (first.estimate == first.chance).all()
