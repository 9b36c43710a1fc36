"""Relevance by route over texts, against each text alone and correlations taken by hand."""

from __future__ import annotations

import numpy as np
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.propagation.layerwise import relevance_paths
from lrputils.study.routes import ROUTES, routes_by_layer
from tests import tiny


class Pretokenised:
    """A classifier as far as `routes_by_layer` looks: texts are digits, one token each."""

    def __init__(self, model):
        self.model = model

    def encode(self, texts):
        width = max(map(len, texts))
        ids = [[int(c) + 10 for c in text] + [tiny.PAD] * (width - len(text)) for text in texts]
        mask = [[1] * len(text) + [0] * (width - len(text)) for text in texts]
        return lrp.Inputs({"input_ids": ids, "attention_mask": mask})


TEXTS = ["12345", "987", "4601"]


@pytest.fixture
def references():
    generator = np.random.default_rng(0)
    return [generator.normal(size=len(text)) for text in TEXTS]


def test_each_texts_routes_are_measured_as_if_alone(references):
    model = tiny.build("roberta")
    rows = routes_by_layer(Pretokenised(model), TEXTS, references, batch_size=2)
    assert list(rows.columns) == [
        *("position", "layer", "route", "share", "r", "r_without", "r_whole")
    ]
    assert len(rows) == len(TEXTS) * 3 * len(ROUTES)
    assert rows.groupby(["position", "layer"]).share.sum().to_numpy() == pytest.approx(1)
    for position, text in enumerate(TEXTS):
        inputs = Pretokenised(model).encode([text])
        carried = relevance_paths(model, inputs)[:, :, 0].numpy()
        loo = references[position]
        for layer in range(3):
            three = {
                "value": carried[layer, 0],
                "query + key": carried[layer, 1] + carried[layer, 2],
                "residual": carried[layer, 3],
            }
            total = sum(np.abs(delivered).sum() for delivered in three.values())
            whole = sum(three.values())
            for route, delivered in three.items():
                row = rows[
                    (rows.position == position) & (rows.layer == layer + 1) & (rows.route == route)
                ].iloc[0]
                assert row.share == pytest.approx(np.abs(delivered).sum() / total)
                assert row.r == pytest.approx(np.corrcoef(delivered, loo)[0, 1])
                assert row.r_without == pytest.approx(np.corrcoef(whole - delivered, loo)[0, 1])
                assert row.r_whole == pytest.approx(stats.pearson(whole, loo)[0])
