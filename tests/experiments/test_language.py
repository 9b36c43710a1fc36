"""Recordings of a language model, against leave-one-out and fits that are known."""

import numpy as np
import pytest

import lrputils as lrp
from experiments.recordings import language
from tests import tiny

PROMPT = {"template": "It is {text}. So", "labels": (" a", " the")}
TEXTS = ("the old sea", "a dog", "is this it")


@pytest.fixture(scope="module")
def speaker():
    return tiny.language_model()


def test_f_is_what_its_name_says(speaker):
    rows = language.prompted(
        speaker, lrp.load_texts(list(TEXTS)), methods=["mask-gradient"], **PROMPT
    )
    zero_shot = speaker.zero_shot(**PROMPT)
    of_first = rows[(rows.id == "0") & (rows.removal != "delete")].set_index(["output", "method"])
    inputs = zero_shot.encode([TEXTS[0]])
    both = [lrp.leave_one_out(zero_shot, inputs, target=target)[0] for target in (0, 1)]
    target = int(of_first.target.iloc[0])
    expected = {"logit": both[target], "difference": both[target] - both[1 - target]}
    whole = speaker.encode(
        [PROMPT["template"].format(text=TEXTS[0])], answer=PROMPT["labels"][target]
    )
    expected["log-probability"] = lrp.leave_one_out(speaker, whole)[0][: len(both[0])]
    for output, scores in expected.items():
        found = of_first.loc[output].loc["loo"].scores
        np.testing.assert_allclose(found, scores, atol=1e-10)
    assert not np.allclose(expected["difference"], expected["log-probability"])


def test_curves_follow_the_same_f(speaker):
    texts = lrp.load_texts(list(TEXTS[:1]))
    how = {"outputs": ["difference"], "removals": [], "methods": ["attnlrp"], **PROMPT}
    (row,) = language.prompted(speaker, texts, curves=1, **how).to_dict("records")
    zero_shot = speaker.zero_shot(**PROMPT)
    target = lrp.contrast(row["target"], 1 - row["target"])
    inputs = zero_shot.encode([TEXTS[0]])
    scores = lrp.attribute(zero_shot, inputs, "attnlrp", target=target)
    both = lrp.perturbation_curves(zero_shot, inputs, scores, target=target)
    assert row["morf"] == pytest.approx(float(both.morf.mean()))
    assert row["lerf"] == pytest.approx(float(both.lerf.mean()))


def test_a_surrogate_finds_what_adds_up():
    removed = np.random.default_rng(0).random((64, 4)) < 0.5
    scores = np.array([9.0, 0.0, -6.0, 3.0])
    outputs = -40 - removed @ scores
    np.testing.assert_allclose(language.surrogate(removed, outputs, 10), scores, atol=1.0)


def test_answers_are_scored_by_the_sentences_of_the_text(speaker):
    texts = lrp.load_texts([("It is. Is it? No.", "Why is it?")])
    rows = language.answers(speaker, texts, most=3, passes=(8,), methods=["attnlrp"], said=True)
    first = rows.iloc[0]
    assert first.sentences == ("It is.", "Is it?", "No.", "Why is it?")
    assert first.own.tolist() == [True, True, True, False]
    chat = [{"role": "user", "content": "It is. Is it? No.\n\nWhy is it?"}]
    inputs = speaker.encode([chat], answer=first.said)
    places = inputs.units("sentence").mask[0]
    loo = lrp.leave_one_out(speaker, inputs, units="sentence")[0][places]
    of_loo = rows[(rows.method == "loo") & (rows.removal == "attention-mask")]
    np.testing.assert_allclose(of_loo.scores.iloc[0], loo, rtol=1e-5)
    assert {*rows.method} == {"loo", "surrogate", "attnlrp"}
