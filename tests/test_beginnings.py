"""What a network knows before its first step: vectors of neighbours, a shallow network's layers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

import lrputils as lrp
from lrputils.training import network, vectors
from lrputils.training.corpus import encode, learn_vocabulary
from lrputils.training.recipe import Shape
from lrputils.training.vectors import WINDOW, neighbour_vectors


@pytest.fixture(scope="module")
def vocabulary():
    return learn_vocabulary(lrp.load_texts("reviews-long").texts, 500, 512)


def _information(rows, pieces):
    """Positive pointwise mutual information, pair by pair."""
    near, whole, contexts = Counter(), Counter(), Counter()
    for row in rows:
        for i, piece in enumerate(row):
            for j, context in enumerate(row):
                if 0 < abs(i - j) <= WINDOW:
                    weight = (WINDOW + 1 - abs(i - j)) / WINDOW
                    near[piece, context] += weight
                    whole[piece] += weight
                    contexts[context] += weight
    smoothed = {context: count**0.75 for context, count in contexts.items()}
    total = sum(smoothed.values())
    matrix = np.zeros((pieces, pieces))
    for (piece, context), count in near.items():
        expected = whole[piece] * smoothed[context] / total
        matrix[piece, context] = max(0.0, math.log(count / expected))
    return matrix


def test_vectors_are_the_singular_vectors_of_the_neighbours_information(vocabulary, monkeypatch):
    monkeypatch.setattr(vectors, "_ROUNDS", 60)  # exact, where values lie as close as here
    texts = lrp.load_texts("reviews", limit=60).texts
    encoded = encode(vocabulary, texts, max_length=512)
    pieces, size = len(vocabulary), 40
    expected = _information([encoded[row].tolist() for row in range(len(encoded))], pieces)
    left, values, _ = np.linalg.svd(expected)
    wanted = left[:, :size] * np.sqrt(values[:size])
    seen = expected.any(1)
    assert 100 < seen.sum() < pieces
    wanted = wanted - wanted[seen].mean(0)
    wanted = wanted / wanted[seen].std()
    found = neighbour_vectors(encoded, pieces, size, 0).numpy()
    # Which way the axes point is chance; how the vectors lie to each other is not.
    np.testing.assert_allclose(found[seen] @ found[seen].T, wanted[seen] @ wanted[seen].T, atol=0.1)
    assert found[~seen].std() == pytest.approx(1, abs=0.1)
    assert np.array_equal(found, neighbour_vectors(encoded, pieces, size, 0).numpy())


def test_rare_contexts_are_left_out_and_missing_directions_are_zeros(vocabulary, monkeypatch):
    encoded = encode(vocabulary, lrp.load_texts("reviews", limit=60).texts, max_length=512)
    whole = vectors._counts(encoded, len(vocabulary))
    monkeypatch.setattr(vectors, "CONTEXTS", 30)
    few = vectors._counts(encoded, len(vocabulary))
    assert np.array_equal(few, whole[:, :30])  # the frequent ones come first
    assert few.sum() > 10 * whole[:, -30:].sum()
    found = neighbour_vectors(encoded, len(vocabulary), 64, 0)
    assert np.linalg.matrix_rank(found[whole.any(1)].numpy()) <= 31


def test_texts_without_neighbours_still_give_numbers(vocabulary):
    encoded = encode(vocabulary, ["film", "a", "good"], max_length=512)
    found = neighbour_vectors(encoded, len(vocabulary), 16, 0)
    assert found.isfinite().all()
    assert found.std().item() == pytest.approx(1, abs=0.1)


def test_words_used_alike_get_vectors_alike(data_dir):
    texts = lrp.load_texts(data_dir / "imdb" / "unsupervised.parquet", limit=3000).texts
    tokenizer = learn_vocabulary(texts, 4000, 512)
    found = neighbour_vectors(encode(tokenizer, texts, max_length=512), len(tokenizer), 64, 0)
    found = torch.nn.functional.normalize(found, dim=1)
    number = tokenizer.get_vocab()

    def rank(word, other):
        likeness = found @ found[number[word]]
        return int((likeness > likeness[number[other]]).sum())

    assert rank("boring", "dull") <= 20
    assert rank("excellent", "superb") <= 20
    assert rank("boring", "superb") > 20


def test_a_new_network_begins_with_the_vectors():
    shape = Shape(layers=1, hidden=32, head_size=16, positions=32)
    given = torch.randn(50, 32)
    config = network.new_config(shape, 50)
    model = network.masked_language_model(config, 0, 0.0, given)
    embeddings = model.bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(embeddings.detach(), network.VECTOR_SCALE * given)
    assert model.cls.predictions.decoder.weight is embeddings
    plain = network.masked_language_model(config, 0, 0.0)
    assert plain.bert.embeddings.word_embeddings.weight.std() < 0.03


def test_a_deep_network_begins_as_the_shallow_one(tmp_path):
    shape = Shape(layers=2, hidden=64, head_size=16, positions=32)
    torch.manual_seed(0)
    shallow = network.classifier(network.new_config(shape, 50), ("no", "yes"), 0, 0.1).eval()
    with torch.no_grad():  # fresh biases and norms would all look alike
        for parameter in shallow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    shallow.save_pretrained(tmp_path)
    deep = network.deepened(tmp_path, 5, 0.0).eval()
    assert isinstance(deep, BertForSequenceClassification)
    assert deep.config.num_hidden_layers == 5
    assert deep.config.hidden_dropout_prob == 0
    assert deep.config.id2label == {0: "no", 1: "yes"}
    ids = torch.randint(0, 50, (20, 7))
    before = shallow(ids, output_hidden_states=True)
    after = deep(ids, output_hidden_states=True)
    spread = before.logits.std(0)
    assert ((after.logits - before.logits).abs() < 0.1 * spread).all()
    for old, new in ((1, 1), (1, 3), (2, 4), (2, 5)):
        difference = after.hidden_states[new] - before.hidden_states[old]
        assert difference.square().mean() < 0.01 * before.hidden_states[old].var()
    old, new = shallow.bert.encoder.layer, deep.bert.encoder.layer
    for layer, origin in enumerate([0, 0, 0, 1, 1]):
        for part in ("query", "key", "value"):
            taken = getattr(new[layer].attention.self, part).weight
            assert torch.equal(taken, getattr(old[origin].attention.self, part).weight)
    # The added layers are not stuck where they are.
    after.logits.square().sum().backward()
    assert all(layer.output.dense.weight.grad.abs().sum() > 0 for layer in new)
    # With as many layers as before, it is the same function.
    same = network.deepened(tmp_path, 2, 0.0).eval()
    torch.testing.assert_close(same(ids).logits, before.logits)
