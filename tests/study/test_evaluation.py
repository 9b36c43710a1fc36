import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils import stats
from lrputils.study.evaluation import compare, evaluate
from lrputils.study.variants import LayerSweep, Variant, at_every_readout

WORDS = (
    "a film that is never dull",
    "dull",
    "not a bad book but the end is far too long for what it has to say",
    "loved it",
    "the band played for two hours and nobody wanted to leave",
)
METHODS = ("rollout", "attnlrp", "cp-lrp")


@pytest.fixture(scope="module")
def texts() -> lrp.Texts:
    return lrp.Texts(WORDS, (1, 0, 0, 1, 1), tuple("abcde"), "ours", "sha256 0")


@pytest.fixture(scope="module")
def result(classifier, texts):
    return evaluate(classifier, texts, METHODS, batch_size=2, progress=False)


def test_labels_are_called_as_in_the_model(classifier):
    table = pd.DataFrame({"text": ["a", "b"], "label": ["up", "down"]})
    names = {"up": "positive", "down": 0}
    found = evaluate(classifier, table, ["Gradient × input"], labels=names, progress=False)
    assert list(found.maps) == ["loo", "grad-x-input"]
    assert [*found.rows.drop_duplicates("id").label] == [1, 0]


def test_r_and_what_sum_to_one_makes_of_it_by_hand():
    """Deviations (4, 7, −11) / 3 and (1, −1, 0); a negative sum turns r round."""
    one, other = [1.0, 2.0, -4.0], [3.0, 1.0, 2.0]
    scores = torch.tensor([one, other, one, [1.0, 2.0, -3.0]])
    loo = torch.tensor([other, one, [-v for v in other], other])
    valid = torch.ones(4, 3, dtype=torch.bool)
    content = torch.tensor([[True, True, False]] * 4)
    rows = pd.DataFrame(compare(scores, loo, valid, content))
    r = 1 / (186 / 9 * 2) ** 0.5
    assert np.allclose(rows.r[:3], [-r, -r, r])
    assert np.allclose(rows.r_normalised, [r, r, r, np.nan], equal_nan=True)
    assert rows.flipped.to_list() == [True, False, True, False]
    assert np.allclose(rows.r_content, [-1, -1, 1, -1])


@pytest.mark.parametrize("position", range(5))
def test_a_text_alone_gives_the_same_maps_and_correlations(classifier, result, position):
    inputs = classifier.encode(WORDS[position])
    loo = lrp.attribute(classifier.model, inputs, "loo")
    for method in METHODS:
        alone = lrp.attribute(classifier.model, inputs, method)
        batched = result.maps[method][position]
        assert np.abs(alone[0].numpy() - batched).max() <= 1e-5 * max(1, np.abs(batched).max())
        row = result.rows.query("position == @position and method == @method").iloc[0]
        assert row.r == pytest.approx(stats.pearson(alone, loo)[0], abs=1e-3)
        content = inputs.content_mask
        expected = stats.pearson(alone, loo, where=content)[0]
        assert row.r_content == pytest.approx(expected, abs=1e-3, nan_ok=True)


def test_a_reference_s_loo_is_taken(classifier, texts, result):
    again = evaluate(
        classifier,
        texts,
        at_every_readout("attnlrp"),
        reference=result.maps["loo"],
        progress=False,
    )
    for ours, theirs in zip(again.maps["loo"], result.maps["loo"], strict=True):
        assert np.array_equal(ours, theirs)
    own = result.per_text()["attnlrp"]
    assert np.allclose(again.per_text(readout="word")["attnlrp"], own, atol=1e-3)
    assert not np.allclose(again.per_text(readout="sum")["attnlrp"], own)


def test_a_contrast_of_two_classes_is_explained(classifier, texts):
    target = lrp.contrast(1, 0)
    found = evaluate(classifier, texts, ["attnlrp"], target=target, progress=False, chunk=4)
    inputs = classifier.encode([texts[0]])
    how = {"target": target, "progress": False}
    loo = lrp.leave_one_out(classifier, inputs, **how)
    relevance = lrp.attribute(classifier, inputs, "attnlrp", target=target)
    logits = classifier.model(**inputs.model_kwargs()).logits[0]
    row = found.rows[found.rows.method == "attnlrp"].iloc[0]
    assert row.target == 1
    assert row.logit == pytest.approx(float(logits[1] - logits[0]), abs=1e-5)
    assert row.r == pytest.approx(float(stats.pearson(relevance, loo)[0]), abs=1e-5)
    assert row.lerf_curve[0] == pytest.approx(row.logit, abs=1e-5)


def test_a_layer_sweep_gives_the_papers_ablations(classifier, texts, result):
    sweep = evaluate(
        classifier, texts, [LayerSweep("word")], reference=result.maps["loo"], progress=False
    )
    layers = classifier.architecture.layers
    assert len(sweep.rows) == (1 + 3 * layers) * len(texts)
    ablations = sweep.ablations("r")
    cp = result.per_text("r")["cp-lrp"]
    for everywhere in (("front", layers), ("back", 1)):
        assert np.allclose(ablations[everywhere], cp, atol=1e-3)
    one = Variant("one", "attnlrp", {"bypass_layers": {0}})
    single = evaluate(classifier, texts, [one], reference=result.maps["loo"], progress=False)
    assert np.allclose(single.per_text("r")["one"], ablations["front", 1], atol=1e-3)


def test_a_name_may_bring_options(classifier):
    how = {"progress": False}
    named = evaluate(classifier, ["a film", "not so good"], ["mask-gradient:groups=2"], **how)
    given = lrp.Variant("halves", "mask-gradient", {"groups": 2})
    other = evaluate(classifier, ["a film", "not so good"], [given], **how)
    for one, two in zip(named.maps["mask-gradient groups=2"], other.maps["halves"], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("text", ["mask-gradient:group=2", "mask-gradient:groups", "ig:"])
def test_what_is_no_option_in_a_name_is_refused(text):
    with pytest.raises(ValueError, match=r"is no option of '.*'; there are"):
        lrp.METHODS.setting(text)
