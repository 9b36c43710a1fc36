"""How the embedded classifier is made: the short form as a whole, and each step by itself."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification

import lrputils as lrp
from lrputils.runs.options import run_alone
from lrputils.training.recipe import Recipe
from lrputils.training.run import bert_config
from recipes.reviewer import __main__ as recipe
from recipes.reviewer import teacher as teaching
from recipes.reviewer.pupil import Pupil, deepened


def build(layers, **options):
    torch.manual_seed(0)
    shape = Recipe("", **{"layers": layers, "hidden": 32, "heads": 2, "max_length": 32} | options)
    return BertForSequenceClassification(bert_config(shape, 50)).eval()


def test_the_short_form_gives_a_classifier_and_its_card(tmp_path, monkeypatch, capsys):
    words = ["--short", "--out", str(tmp_path / "out"), "--device", "cpu", "--quiet"]

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(recipe, "deepened", killed)
        with pytest.raises(KeyboardInterrupt):
            run_alone(recipe.make, words, prog="python -m recipes.reviewer")
    work = tmp_path / "out" / "training"
    assert (work / "few-layers" / "model.safetensors").is_file()
    monkeypatch.setattr(teaching, "_answers", killed)  # what is there is not made again
    run_alone(recipe.make, words, prog="python -m recipes.reviewer")
    assert not work.exists()
    clf = lrp.load_classifier(tmp_path / "out")
    assert clf.labels == ("negative", "positive")
    assert clf.architecture.layers == recipe.SHORT.shape.layers
    card = (tmp_path / "out" / "README.md").read_text()
    assert re.search(r"^\| few layers \| 2\.00 \|.*\n\| all layers \| 1\.00 \|", card, re.MULTILINE)
    assert "## Attention that matters" in card
    assert lrp.load_classifier().identity in card
    assert "python -m recipes.reviewer --short --out DIR" in card
    assert str(tmp_path) not in card


def test_the_full_plan_is_the_shape_of_the_committed_weights():
    clf, shape = lrp.load_classifier(), recipe.FULL.shape
    built, committed = bert_config(shape, shape.vocabulary), clf.model.config
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        assert getattr(built, name) == getattr(committed, name)
    assert built.max_position_embeddings == committed.max_position_embeddings
    assert 2 * sum(p.numel() for p in clf.model.parameters()) < 16e6


def test_a_deep_network_begins_as_the_shallow_one():
    shallow = build(2, hidden=64)
    with torch.no_grad():  # fresh biases and norms would all look alike
        for parameter in shallow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    deep = deepened(shallow, 5).eval()
    assert deep.config.num_hidden_layers == 5
    ids = torch.randint(0, 50, (20, 7))
    before, after = (model(ids, output_hidden_states=True) for model in (shallow, deep))
    assert ((after.logits - before.logits).abs() < 0.1 * before.logits.std(0)).all()
    for old, new in ((1, 1), (1, 3), (2, 4), (2, 5)):
        difference = after.hidden_states[new] - before.hidden_states[old]
        assert difference.square().mean() < 0.01 * before.hidden_states[old].var()
    old, new = shallow.bert.encoder.layer, deep.bert.encoder.layer
    for layer, origin in enumerate([0, 0, 0, 1, 1]):
        taken = new[layer].attention.self.query.weight
        assert torch.equal(taken, old[origin].attention.self.query.weight)
    after.logits.square().sum().backward()  # the added layers are not stuck where they are
    assert all(layer.output.dense.weight.grad.abs().sum() > 0 for layer in new)
    torch.testing.assert_close(deepened(shallow, 2).eval()(ids).logits, before.logits)


def test_the_loss_is_that_of_the_equations():
    clf = build(6)
    pupil = Pupil(clf, 3, 5)
    for parameter in pupil.guesses.parameters():  # they begin as zeros
        assert not parameter.any()
        torch.nn.init.normal_(parameter)
    ids, mask = torch.randint(0, 50, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    labels = torch.tensor([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    outputs = clf(ids, attention_mask=mask, output_hidden_states=True)
    expected = -(labels * outputs.logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(cross_entropy(outputs.logits, labels), expected)
    positions, states = torch.tensor([0, 3, 8]), torch.randn(3, 3, 5).half()
    torch.testing.assert_close(pupil(ids, mask, labels, positions[:0], states[:0]).loss, expected)
    distance = torch.tensor(0.0)
    for word, (row, token) in enumerate([(0, 0), (0, 3), (1, 1)]):
        for depth, layer in enumerate([2, 4, 6]):
            guess = pupil.guesses[depth](outputs.hidden_states[layer][row, token])
            distance += (guess - states[word, depth].float()).square().sum() / 9
    loss = pupil(ids, mask, labels, positions, states).loss
    torch.testing.assert_close(loss, expected + distance)
