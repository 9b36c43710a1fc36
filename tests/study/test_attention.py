"""Routes of relevance, other forms of attention and even weights, over texts."""

import copy

import numpy as np
import pytest
import torch

import lrputils as lrp
from lrputils import stats
from lrputils.study import attention

TEXTS = ["a film that is never dull", "dull", "long and loud"]


def test_each_texts_routes_are_measured_as_if_alone(placeholder):
    rows = lrp.routes_by_layer(placeholder, TEXTS, batch_size=2)
    layers = placeholder.architecture.layers
    assert len(rows) == len(TEXTS) * layers * len(attention.ROUTES)
    assert rows.groupby(["id", "layer"]).share.sum().to_numpy() == pytest.approx(1)
    rows = rows.set_index(["id", "layer", "route"])
    for number, text in enumerate(TEXTS):
        inputs = placeholder.encode(text)
        carried = lrp.relevance_paths(placeholder, inputs)[:, :, 0].double().numpy()
        loo = lrp.leave_one_out(placeholder, inputs)[0].double().numpy()
        for layer, (value, query, key, residual) in enumerate(carried):
            three = {"value": value, "query + key": query + key, "residual": residual}
            total, whole = sum(np.abs([*three.values()]).sum(1)), sum(three.values())
            for route, delivered in three.items():
                row = rows.loc[(str(number), layer + 1, route)]
                assert row.share == pytest.approx(np.abs(delivered).sum() / total, rel=1e-4)
                for column, map_ in (
                    ("r", delivered),
                    ("r_without", whole - delivered),
                    ("r_whole", whole),
                ):
                    assert row[column] == pytest.approx(stats.pearson(map_, loo)[0], abs=1e-4)


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
