"""Even weights of attention."""

import copy

import torch

from experiments import attention


def test_uniform_attention_is_that_of_queries_of_zero(placeholder):
    inputs = placeholder.encode(["a film that is never dull", "dull"])

    def logits(model):
        return model(**inputs.model_kwargs()).logits

    plain = logits(placeholder.model)
    with attention.uniform_attention(placeholder.model):
        changed = logits(placeholder.model)
    assert (changed - logits(placeholder.model)).abs().max() > 1e-3
    with attention.uniform_attention(placeholder.model, ()):
        torch.testing.assert_close(logits(placeholder.model), plain)
    one_by_one = []
    for layer in range(placeholder.architecture.layers):
        flat = copy.deepcopy(placeholder.model)
        flat.bert.encoder.layer[layer].attention.self.query.weight.zero_()
        flat.bert.encoder.layer[layer].attention.self.query.bias.zero_()
        with attention.uniform_attention(placeholder.model, {layer}):
            one_by_one.append(logits(placeholder.model))
        torch.testing.assert_close(one_by_one[-1], logits(flat), atol=1e-5, rtol=1e-5)
    assert (one_by_one[0] - one_by_one[-1]).abs().max() > 1e-4
