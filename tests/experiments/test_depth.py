"""Removal in the last layers alone, and a control of a comparison, on the book's own model."""

import pytest
import torch

import lrputils as lrp
from experiments import controls
from experiments.depth import agreement_by_depth, losses

TEXTS = lrp.load_texts(["a film that is never dull", "a slow and empty evening"])


def test_hidden_from_the_first_layer_on_is_leave_one_out(clf):
    inputs = clf.encode([TEXTS[0]])
    exact = lrp.leave_one_out(clf, inputs)[0]
    target = int(clf.model(**inputs.model_kwargs()).logits.argmax())
    keys = torch.eye(len(exact), dtype=torch.bool)
    assert torch.allclose(losses(clf, inputs["input_ids"][0], target, 0, keys), exact, atol=1e-5)
    above = losses(clf, inputs["input_ids"][0], target, clf.architecture.layers, keys)
    assert torch.allclose(above, torch.zeros(()), atol=1e-6)


def test_all_layers_gated_is_the_mask_gradient_against_loo(clf):
    rows = agreement_by_depth(clf, TEXTS).set_index(["id", "form", "k"])
    layers = clf.architecture.layers
    for text, name in zip(TEXTS, TEXTS.ids, strict=True):
        inputs = clf.encode([text])
        loo = lrp.leave_one_out(clf, inputs)
        for form in ("exact-block", "first-order"):
            scores = lrp.attribute(clf, inputs, "mask-gradient", form=form)
            r = lrp.pearson(scores, loo, where=inputs.content_mask)[0]
            assert rows.loc[(name, form, layers), "r_content"] == pytest.approx(r, abs=1e-4)
    last = rows.xs(1, level="k").xs("exact-block", level="form")
    assert (last.r > 0.9).all()  # one layer is nearly linear behind its block


def test_randomised_weights_change_maps_and_leave_the_model_alone(clf):
    before = clf.identity
    rows = controls.random_weights(clf, TEXTS)
    assert list(rows.randomised.unique()) == [
        "",
        "head",
        "head, layers 7-12",
        "head, all layers",
    ]
    assert (rows[rows.method == "loo"].r > 0.999).all()
    assert (rows[rows.randomised == ""].similarity > 0.999).all()
    assert (rows[rows.randomised != ""].similarity < 0.99).mean() > 0.8
    assert type(clf)(clf.model, clf.tokenizer, clf.name).identity == before
