"""Relevance by route over texts, against each text alone and correlations taken by hand."""

from __future__ import annotations

import numpy as np
import pytest

import lrputils as lrp
from lrputils import stats
from lrputils.propagation.layerwise import relevance_paths
from lrputils.study.attention import ROUTES

TEXTS = ["a film that is never dull", "dull", "long and loud"]


def test_each_texts_routes_are_measured_as_if_alone(placeholder):
    rows = lrp.routes_by_layer(placeholder, TEXTS, batch_size=2)
    layers = placeholder.architecture.layers
    assert len(rows) == len(TEXTS) * layers * len(ROUTES)
    assert rows.groupby(["id", "layer"]).share.sum().to_numpy() == pytest.approx(1)
    rows = rows.set_index(["id", "layer", "route"])
    for number, text in enumerate(TEXTS):
        inputs = placeholder.encode(text)
        carried = relevance_paths(placeholder, inputs)[:, :, 0].double().numpy()
        loo = lrp.leave_one_out(placeholder, inputs)[0].double().numpy()
        for layer, (value, query, key, residual) in enumerate(carried):
            three = {"value": value, "query + key": query + key, "residual": residual}
            total = sum(np.abs(delivered).sum() for delivered in three.values())
            whole = sum(three.values())
            for route, delivered in three.items():
                row = rows.loc[(str(number), layer + 1, route)]
                assert row.share == pytest.approx(np.abs(delivered).sum() / total, rel=1e-4)
                assert row.r == pytest.approx(stats.pearson(delivered, loo)[0], abs=1e-4)
                without = stats.pearson(whole - delivered, loo)[0]
                assert row.r_without == pytest.approx(without, abs=1e-4)
                assert row.r_whole == pytest.approx(stats.pearson(whole, loo)[0], abs=1e-4)
