"""How maps through other forms of one attention are compared."""

from __future__ import annotations

import numpy as np
import pytest

import lrputils as lrp
from lrputils.propagation import refactored as rf
from lrputils.study import attention

FORMS = {"plain": rf.standard, "biased": rf._value_bias, "last": rf._normalised_last}


@pytest.fixture(scope="module")
def rows():
    classifier = lrp.load_classifier(dtype="float64")
    return attention.through_forms(classifier, lrp.load_texts(limit=2, seed=0), forms=FORMS)


def test_only_attnlrp_sees_the_form(rows):
    assert len(rows) == 2 * len(FORMS) * 4
    assert rows.logit.max() < 1e-9
    controls = rows[rows.method != "attnlrp"]
    assert controls.moved.max() < 1e-9
    np.testing.assert_allclose(controls.r, 1)
    last = rows[(rows.method == "attnlrp") & (rows.form == "last")]
    assert last.moved.min() > 0.01
