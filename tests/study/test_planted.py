"""The planted rule: its texts, a model that learned it, and what the methods find in it."""

from __future__ import annotations

import pytest
import torch

from lrputils.report import yardstick as tables
from lrputils.study import planted


@pytest.fixture(scope="module")
def models():
    return {0: planted.load(0)}


def test_texts_hold_their_evidence_and_the_rule_needs_it():
    for kind, evidence in planted.EVIDENCE.items():
        inputs = planted.texts(kind, 20, seed=3)
        ids, mask = inputs["input_ids"], torch.ones(20, planted.WORDS + 2)
        assert (planted.rule(ids, mask) == 1).all()
        gone = [(ids == token).double() for token in evidence]
        assert all((part.sum(1) == 1).all() for part in gone)
        lost = 1 - planted.rule(ids, mask - gone[0])
        assert (lost == planted.TRUTH[kind]["loo"]).all()
        if kind in planted.INTERACTION:
            both = 1 - planted.rule(ids, mask - gone[0] - gone[1])
            assert (both - 2 * lost == planted.INTERACTION[kind]).all()
            # Of a pair's two orders, one puts this token first.
            first = 1 - planted.rule(ids, mask - gone[0])
            second = planted.rule(ids, mask - gone[1]) + 1
            assert ((first + second) / 2 == planted.TRUTH[kind]["shapley"]).all()
        else:
            assert planted.TRUTH[kind]["shapley"] == planted.TRUTH[kind]["loo"]


def test_training_texts_are_balanced_and_show_every_case():
    ids, mask = planted.drawn(4000, torch.Generator().manual_seed(0))
    assert abs(float(planted.rule(ids, mask).mean())) < 0.2
    seen = [((ids == token) & mask.bool()).any(1) for token in range(planted.S, planted.B + 1)]
    assert (seen[1] & seen[2]).double().mean() > 0.02
    alone = ~(seen[0] | seen[1] | seen[2])
    assert (seen[3] & seen[4] & alone).double().mean() > 0.05
    assert (seen[3] & ~seen[4] & alone).double().mean() > 0.05


def test_the_model_learns_the_rule_and_removal_says_what_it_says(models):
    fit = planted.fit(models[0])
    assert fit.accuracy > 0.99
    assert fit.error < 0.1
    rows = planted.found(models, 8, options={"ig": {"steps": 4}})
    value = rows.groupby(["method", "kind"]).value.mean()
    for kind, truth in planted.TRUTH.items():
        for method, expected in truth.items():
            assert value[method, kind] == pytest.approx(expected, abs=0.1)
    hit = planted.summary(rows).value
    assert (hit.xs("shapley", level=1) > 0.95).all()
    assert hit["redundant", "loo"] < 0.9
    assert planted.interactions(models, 8).to_dict() == pytest.approx(planted.INTERACTION, abs=0.1)
    assert list(tables.values(rows)) == list(tables.KINDS.values())
    assert tables.hits(rows).loc["one token", "LOO"].value == hit["single", "loo"]


def test_training_learns_the_rule():
    few, more = (planted.fit(planted.train(0, steps)) for steps in (2, 60))
    assert more.accuracy > few.accuracy
    assert more.error < few.error


def test_each_seed_is_shipped(models):
    errors = [planted.fit(planted.load(seed)).error for seed in range(planted.SEEDS)]
    assert len(set(errors)) == planted.SEEDS
    assert max(errors) < 0.1
    with pytest.raises(ValueError, match="seeds 0 to 2"):
        planted.load(3)


def test_what_is_saved_is_what_was_trained(models, tmp_path, monkeypatch):
    planted.save(models, tmp_path / "one.safetensors")
    monkeypatch.setattr(planted, "SHIPPED", tmp_path / "one.safetensors")
    again, first = planted.load(0).state_dict(), models[0].state_dict()
    assert all(torch.equal(again[name], first[name]) for name in first)


def test_the_seed_decides():
    first, again, other = (planted.train(seed, steps=2).state_dict() for seed in (0, 0, 1))
    name = "classifier.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
