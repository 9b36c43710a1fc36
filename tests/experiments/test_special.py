"""What the first token's word holds: an intervention."""

import numpy as np
import torch

import lrputils as lrp
from experiments.recordings import special

TEXTS = ["a film that is never dull", "a slow and empty evening"]


def test_a_moved_position_leaves_loo_and_makes_the_words_map_that_of_the_sum(classifier):
    rows = special.moved(classifier, lrp.load_texts(TEXTS)).set_index(["id", "method", "readout"])
    assert (rows.loo_change < 1e-4).all()
    other = special._move_first(classifier)
    inputs = classifier.encode(TEXTS)
    for method in special.LRP:
        word, sums, moved = (
            lrp.attribute(model, inputs, method, readout=place)
            for model, place in ((classifier, "word"), (classifier, "sum"), (other, "word"))
        )
        assert torch.allclose(moved[:, 0], sums[:, 0], atol=1e-5)
        assert torch.allclose(moved[:, 1:], word[:, 1:], atol=1e-5)
        assert not torch.allclose(moved[:, 0], word[:, 0], atol=1e-3)
        r = lrp.pearson(moved, lrp.leave_one_out(classifier, inputs), inputs.valid_mask)
        found = rows.xs((method, "word"), level=("method", "readout")).r_moved
        np.testing.assert_allclose(found, r, atol=1e-4)
