"""Yardsticks: what the rows of texts hold."""

import numpy as np
import pytest

import lrputils as lrp
from experiments import conventions

TEXTS = ["a film that is never dull", "dull", "a slow and empty evening"]


@pytest.fixture(scope="module")
def rows(classifier):
    return conventions.yardstick(classifier, lrp.load_texts(TEXTS), permutations=4, batch_size=2)


def test_rows_hold_every_map_over_the_words(rows, classifier):
    inputs = classifier.encode(TEXTS[:1])
    one = rows[rows.id == rows.id.iloc[0]].set_index("method").scores
    content = inputs.content_mask[0]
    for method in ("attnlrp", "loo"):
        expected = lrp.attribute(classifier.model, inputs, method)[0, content]
        np.testing.assert_allclose(one[method], expected, atol=1e-5)
    pairs = lrp.leave_two_out(classifier.model, inputs).interactions[0][content][:, content]
    upper = pairs[np.triu_indices(len(pairs), 1)]
    np.testing.assert_allclose(one["interactions"], upper, atol=1e-5)
    halves = (one["shapley-first"] + one["shapley-second"]) / 2
    np.testing.assert_allclose(one["shapley"], halves, atol=1e-5)


def test_exact_values_stand_beside_the_sampled_ones(classifier):
    texts = lrp.load_texts([TEXTS[0], "a film " * 9])
    rows = conventions.yardstick(classifier, texts, permutations=4, exact=True)
    exact = rows[rows.method == conventions.EXACT]
    assert list(exact.id) == [rows.id.iloc[0]]
    inputs = classifier.encode(TEXTS[:1])
    expected = lrp.shapley_values(classifier, inputs, permutations="all").scores
    np.testing.assert_allclose(
        exact.scores.iloc[0], expected[inputs.content_mask], rtol=1e-4, atol=1e-5
    )


def test_methods_that_no_composite_makes_are_those_of_the_registry(classifier):
    names = ["attention-x-grad", "mask-gradient:groups=2"]
    rows = conventions.maps(classifier, lrp.load_texts(TEXTS[:1]), removals=[], methods=names)
    inputs = classifier.encode(TEXTS[:1])
    one = rows.set_index("method").scores
    for method, options in (("attention-x-grad", {}), ("mask-gradient", {"groups": 2})):
        expected = lrp.attribute(classifier.model, inputs, method, **options)[0]
        np.testing.assert_allclose(one[method], expected, atol=1e-5)
    assert list(rows.options) == ["", "groups=2"]
