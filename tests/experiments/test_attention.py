"""Even weights of attention."""

import copy

import torch

from experiments import attention


def test_uniform_attention_is_that_of_queries_of_zero(classifier):
    inputs = classifier.encode(["a film that is never dull", "dull"])

    def logits(model):
        return model(**inputs.model_kwargs()).logits

    plain = logits(classifier.model)
    with attention.uniform_attention(classifier.model):
        changed = logits(classifier.model)
    assert (changed - logits(classifier.model)).abs().max() > 1e-3
    with attention.uniform_attention(classifier.model, ()):
        torch.testing.assert_close(logits(classifier.model), plain)
    one_by_one = []
    for layer in range(classifier.architecture.layers):
        flat = copy.deepcopy(classifier.model)
        flat.bert.encoder.layer[layer].attention.self.query.weight.zero_()
        flat.bert.encoder.layer[layer].attention.self.query.bias.zero_()
        with attention.uniform_attention(classifier.model, {layer}):
            one_by_one.append(logits(classifier.model))
        torch.testing.assert_close(one_by_one[-1], logits(flat), atol=1e-5, rtol=1e-5)
    assert (one_by_one[0] - one_by_one[-1]).abs().max() > 1e-4
