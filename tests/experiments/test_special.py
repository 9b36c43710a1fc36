"""What stands behind the text, and what the first token's word holds: two interventions."""

import numpy as np
import pytest
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


def test_a_sentence_stands_behind_the_text_and_the_first_class_is_explained(classifier):
    texts = lrp.load_texts(TEXTS)
    rows = special.appended(classifier, texts, leanings=["same", "other"], triples=[0])
    for number, text in enumerate(TEXTS):
        found = rows[rows.id == texts.ids[number]].set_index(["leaning", "method", "readout"])
        logits = classifier.model(**classifier.encode([text]).model_kwargs()).logits[0]
        target = int(logits.argmax())
        negative, _, positive = special.SENTENCES[0]
        for leaning, sentence in (
            ("same", (negative, positive)[target]),
            ("other", (positive, negative)[target]),
        ):
            inputs = classifier.encode([f"{text} {sentence}"])
            after = classifier.model(**inputs.model_kwargs()).logits[0].detach()
            loo = lrp.leave_one_out(classifier, inputs, target=target)
            maps = lrp.attribute(classifier, inputs, "cp-lrp", target=target, readout="sum")
            row = found.loc[leaning, "cp-lrp", "sum"]
            assert row.after == pytest.approx(float(after[target]), abs=1e-4)
            assert row.kept == (int(after.argmax()) == target)
            assert row.r == pytest.approx(lrp.pearson(maps, loo)[0], abs=1e-4)
            own = maps[0, 1:-1].numpy()
            first = (float(maps[0, 0]) - own.mean()) / own.std()
            assert row["first"] == pytest.approx(first, rel=1e-3)


def test_the_sentences_of_a_triple_have_as_many_tokens(clf):
    for triple in special.SENTENCES:
        assert len({len(clf.encode([some])["input_ids"][0]) for some in triple}) == 1
