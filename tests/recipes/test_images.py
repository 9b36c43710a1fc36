"""The recipe that measures chapter 2's networks further: its rows, on random images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lrputils.linear_attention as la
from lrputils.data.images import ImageData
from lrputils.runs import results
from recipes.recordings import images as recipe


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pixels, labels = np.random.default_rng(0).random((24, 9)), np.arange(24) % 3
    halves = pixels[:16], labels[:16], pixels[16:], labels[16:]
    data = ImageData("random", "16 / 8", 3, *halves, identity="sha256 1")
    monkeypatch.setattr(recipe, "load_images", lambda dataset: data)
    monkeypatch.setattr(la, "SETTINGS", la.SETTINGS[4:11:6])
    recipe.record("anything", tmp_path / "networks", tmp_path / "mnist", seeds=2, images=5)
    return tmp_path


def test_every_network_has_its_rows(folder):
    epsilon, ig, curves = (results.load("mnist", name, folder).rows for name in recipe.MEASURES)
    asked = {(s.name, seed) for s in la.SETTINGS for seed in (0, 1)}
    for rows in (epsilon, ig, curves):
        assert set(zip(rows.setting, rows.seed, strict=True)) == asked
        assert not rows.isna().any(axis=None)
    keys = ["setting", "seed", "removal"]
    assert not epsilon.duplicated([*keys, "pair", "epsilon"]).any()
    assert set(epsilon.epsilon) == {0.0, *recipe.EPSILONS}
    assert (epsilon.r[epsilon.pair.str.endswith("ε = 0") & (epsilon.epsilon == 0)] == 1).all()
    assert not ig.duplicated([*keys, "baseline", "pair"]).any()
    assert not curves.duplicated([*keys, "method", "id"]).any()
    assert (curves.groupby([*keys, "method"], observed=True).size() == 5).all()


def test_rows_are_measured_again_from_the_kept_networks(folder):
    data = recipe.load_images("anything")
    setting, seed, network = next(iter(recipe.networks(folder / "networks", data, 2)))
    curves = results.load("mnist", "curves", folder).rows
    rows = curves[(curves.setting == setting.name) & (curves.seed == seed)]
    fresh = recipe.measure_curves(network, torch.from_numpy(data.test_images[:5]))
    np.testing.assert_allclose(rows.morf, fresh.morf, atol=6e-4)
    maps = la.explain(network, torch.from_numpy(data.test_images[:5]))
    r = la.compared(maps, {"IG vs LOO": ("IG", "LOO")}).r.mean()
    ig = recipe.measure_ig(network, torch.from_numpy(data.test_images[:5]))
    assert ig[(ig.baseline == "zero") & (ig.removal == "zero")].r.iloc[0] == pytest.approx(r)
    loo = fresh[(fresh.method == "LOO") & (fresh.removal == "zero")]
    scores = la.leave_one_out(network, torch.from_numpy(data.test_images[:5]))
    curve = recipe.removal_curves(network, torch.from_numpy(data.test_images[:5]), scores)
    np.testing.assert_allclose(loo.morf, curve.mean(1))
