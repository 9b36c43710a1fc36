"""Chapter 2's recorded run: how it is made, and that the committed one still holds."""

import numpy as np
import pytest
import torch

import experiments.linear_attention as la
from experiments.images import ImageData, load_images
from experiments.recordings import mnist as recorder
from lrputils.book.layout import find_book
from lrputils.runs import results

SETTINGS = [la.Setting("none", "flattened", "signed"), la.Setting("learned", "mean", "unit")]


@pytest.fixture
def tiny_data(monkeypatch):
    pixels = np.random.default_rng(0).random((60, 9))
    labels = np.arange(60) % 3
    data = ImageData(
        "random", "40 / 20", 3, pixels[:40], labels[:40], pixels[40:], labels[40:], "sha256 1"
    )
    monkeypatch.setattr(recorder, "load_images", lambda dataset: data)
    return data


def record(out, **options):
    options = {
        "settings": [s.name for s in SETTINGS],
        "seeds": 2,
        "images": 5,
        "epochs": 1,
        "quiet": True,
    } | options
    options = {"command": "again", "networks": out.parent / "networks"} | options
    kind = options.pop("kind", "linear-attention")
    return recorder.record_mnist(kind, dataset="anything", out=out, **options)


def test_every_kind_has_the_rows_of_every_network(tiny_data, tmp_path):
    out = tmp_path / "mnist"
    kinds = {k: record(out / k, kind=k) for k in ("epsilon", "ig", "curves")}
    epsilon, ig, curves = (results.load("mnist", kind, tmp_path).rows for kind in kinds)
    asked = {(setting.name, seed) for setting in SETTINGS for seed in (0, 1)}
    keys = {"epsilon": ["pair", "epsilon"], "ig": ["baseline", "pair"], "curves": ["method", "id"]}
    for kind, rows in zip(kinds, (epsilon, ig, curves), strict=True):
        assert set(zip(rows.setting, rows.seed, strict=True)) == asked
        assert not rows.isna().any(axis=None)
        assert not rows.duplicated(["setting", "seed", "removal", *keys[kind]]).any()
    assert set(epsilon.epsilon) == {0.0, *recorder.EPSILONS}
    assert (epsilon.r[epsilon.pair.str.endswith("ε = 0") & (epsilon.epsilon == 0)] == 1).all()
    assert set(curves.groupby(["setting", "seed", "removal", "method"]).size()) <= {0, 5}

    network = recorder._trained(out / "networks/0", tiny_data, SETTINGS[0], 0)
    images = torch.from_numpy(tiny_data.test_images[:5])
    maps = la.explain(network, images)
    r = la.correlations(maps, {"IG vs LOO": ("IG", "LOO")}).r.mean()
    fresh = recorder._measure_ig(network, images)
    own = fresh[
        (fresh.baseline == "zero") & (fresh.removal == "zero") & (fresh.pair == "IG vs LOO")
    ]
    assert own.r.item() == pytest.approx(r)
    curve = recorder._removal_curves(network, images, maps["LOO"]).mean(1)
    first = curves[(curves.setting == SETTINGS[0].name) & (curves.seed == 0)]
    loo = first[(first.method == "LOO") & (first.removal == "zero")]
    np.testing.assert_allclose(loo.morf, curve, atol=6e-5)


# The committed run


@pytest.fixture(scope="module")
def committed():
    return results.load("mnist", "linear-attention")


@pytest.fixture(scope="module")
def mnist(data_dir, committed):
    data = load_images(data_dir / "mnist")
    if data.identity != committed.provenance["data"]["identity"]:
        pytest.skip("the MNIST at hand is not the one that was recorded")
    return data


FOLDER = find_book().root / "results" / "mnist" / "linear-attention"


@pytest.mark.parametrize("setting", la.SHIPPED, ids=lambda s: s.name)
def test_recorded_rows_are_those_of_the_kept_network(setting, committed, mnist):
    """Weights are fixed and arithmetic is float64: only the rounding to 4 decimals is allowed."""
    few = 6
    network = la.load_shipped(setting, 0, FOLDER / "networks")
    keys = ["removal", "pair", "id"]
    fresh = la.under_every_removal(network, torch.from_numpy(mnist.test_images[:few])).set_index(
        keys
    )
    rows = committed.rows
    rows = rows[(rows.setting == setting.name) & (rows.seed == 0) & (rows.id < few)]
    rows = rows.set_index(keys)
    fresh = fresh.loc[rows.index]
    assert len(rows) == len(fresh) > 0
    np.testing.assert_allclose(rows.r, fresh.r, rtol=0, atol=6e-5)
    assert (rows.flipped == fresh.flipped).all()
    assert (rows.target == fresh.target).all()
    reached = la.accuracy(
        network, torch.from_numpy(mnist.test_images), torch.from_numpy(mnist.test_labels)
    )
    assert rows.accuracy.iloc[0] == pytest.approx(reached, abs=6e-5)
