"""Words, sentences and spans that are removed at once, against plain forward passes."""

import pickle

import numpy as np
import pytest
import torch

import lrputils as lrp
from tests import reference

TEXTS = [
    "The dialogue is unwatchable dreck. But the never-ending score isn't bad! I loved it.",
    "a film that is never dull",
]


def sets_of(inputs, row, units):
    """The columns of each unit of a text."""
    numbers = inputs.units(units).numbers[row]
    return [(numbers == n).nonzero()[:, 0].tolist() for n in range(int(numbers.max()) + 1)]


def f_without(clf, inputs, row, gone):
    """The predicted class's logit of one text without some columns."""
    target = reference.without(clf.model, inputs, row).argmax()
    return float(reference.without(clf.model, inputs, row, gone)[target])


@pytest.mark.parametrize(
    ("units", "removal"),
    [
        *(("word", removal) for removal in ("attention-mask", "mask", "zero", "delete")),
        ("sentence", "attention-mask"),
        ([[(0, 12), (16, 27)], [(7, 25)]], "delete"),
    ],
)
def test_loo_of_a_unit_is_a_pass_without_all_of_its_tokens(clf, units, removal):
    inputs = clf.encode(TEXTS)
    found = lrp.leave_one_out(clf, inputs, units=units, removal=removal)
    sets = [sets_of(inputs, row, units) for row in range(len(TEXTS))]
    expected = reference.leave_one_out(clf.model, inputs, removal, units=sets)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_every_verb_that_removes_takes_words(clf):
    inputs = clf.encode("unwatchable dreck")
    one, two = sets_of(inputs, 0, "word")
    given = {"": one + two, "1": two, "2": one, "12": []}
    f = {left: f_without(clf, inputs, 0, gone) for left, gone in given.items()}
    value, where = (f["1"] - f[""] + f["12"] - f["2"]) / 2, (0, one[0])
    for orders in ("all", 4):
        found = lrp.shapley_values(clf, inputs, units="word", permutations=orders)
        assert float(found.scores[where]) == pytest.approx(value, abs=1e-5)
    pair = lrp.leave_two_out(clf, inputs, units="word").interactions[(*where, two[0])]
    assert float(pair) == pytest.approx(f["1"] + f["2"] - f["12"] - f[""], abs=1e-5)
    first_goes = torch.zeros(inputs["input_ids"].shape)
    first_goes[where] = 1
    curve = lrp.perturbation_curves(clf, inputs, first_goes, units="word").morf[0]
    assert curve.tolist() == pytest.approx([f["12"], f["2"], f[""]], abs=1e-5)


def test_words_and_sentences_are_those_of_the_text(clf):
    inputs = clf.encode(TEXTS)
    assert inputs.units("sentence").texts[0] == (
        "The dialogue is unwatchable dreck.",
        "But the never-ending score isn't bad!",
        "I loved it.",
    )
    words = inputs.units("word").texts
    assert words[1] == ("a", "film", "that", "is", "never", "dull")
    assert {"unwatchable", "dreck", "isn't", "."} < {*words[0]}
    assert inputs.units("token").texts[1] == inputs.tokens[1][1:-1]
    again = pickle.loads(pickle.dumps(inputs)).rows([1]).units("word")
    assert again.texts == words[1:]


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ("words", "units='words' is not one of"),
        ([[(0, 3)]], "units of 1 texts, but there are 2"),
        ([[(0, 6), (3, 9)], []], r"the span \(3, 9\) of text 0 overlaps"),
        ([[(0, 900)], []], "leaves the text, which has 84 characters"),
        ([[(3, 4)], []], r"the span \(3, 4\) of text 0, ' ', has no token of its own"),
    ],
)
def test_units_that_are_none_are_named(clf, units, said):
    with pytest.raises(ValueError, match=said):
        lrp.leave_one_out(clf, clf.encode(TEXTS), units=units)


def test_spans_are_any_sequences_of_pairs(clf):
    inputs, spans = clf.encode(TEXTS[:1]), [[(0, 12), (16, 27)]]
    expected = lrp.attribute(clf, inputs, "loo", units=spans)
    for units in ([[[0, 12], [16, 27]]], np.array(spans), torch.tensor(spans)):
        torch.testing.assert_close(lrp.attribute(clf, inputs, "loo", units=units), expected)
        assert "span" in str(lrp.explain(clf, TEXTS[0], "loo", units=units[0]))
    for units in (3, [[5]], [[(0, 6, 7)]], "phrase"):
        with pytest.raises(ValueError, match=r"units=.* is not one of .*, nor spans of"):
            lrp.leave_one_out(clf, inputs, units=units)
