"""Even weights of attention."""

import copy

import torch

from experiments import attention


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
