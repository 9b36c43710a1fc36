"""Even weights of attention, and weights of all layers drawn anew."""

import copy

import torch

import lrputils as lrp
from experiments import attention, controls


def test_uniform_attention_is_that_of_queries_of_zero(classifier):
    inputs = classifier.encode(["a film that is never dull", "dull"])

    def logits(model):
        return model(**inputs.model_kwargs()).logits

    plain = logits(classifier.model)
    for layers in ((), {0}, {1}, None):
        flat = copy.deepcopy(classifier.model)
        for layer in (0, 1) if layers is None else layers:
            for parameter in flat.bert.encoder.layer[layer].attention.self.query.parameters():
                parameter.zero_()
        given = () if layers is None else (layers,)
        with attention.uniform_attention(classifier.model, *given):
            torch.testing.assert_close(logits(classifier.model), logits(flat), atol=1e-5, rtol=1e-5)
        assert bool((logits(flat) - plain).abs().max() > 1e-4) == (layers != ())


def test_randomised_weights_change_maps_and_leave_the_model_alone(clf):
    before, texts = clf.identity, lrp.load_texts(["a film that is never dull", "a slow evening"])
    rows = controls.random_weights(clf, texts)
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
