"""One function, other parameters (prop-gauge): changes of a BERT's weights that change no output.

A measure that moves under them describes the weights as stored and not the function. With H a
head, t, b and c any vectors, M and N any invertible matrices, and W_O, b_O the linear map behind
the block:

    key bias       K → K + c
    value bias     V → V + b,              b_O → b_O − W_O b
    query and key  Q_H → Q_H M,            K_H → K_H M⁻ᵀ
    value basis    V_H → V_H N,            W_O → W_O N⁻ᵀ on the head's columns
    layer input    x → x + t by the LayerNorm below; the biases of Q, K and V and b_O follow
    embeddings     every word embedding + t, every position embedding − t
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

INSIDE = ("key bias", "value bias", "query and key", "value basis")
CHANGES = (*INSIDE, "layer input", "embeddings")


@torch.no_grad()
def reparameterised(
    model: BertForSequenceClassification, *changes: str, seed: int = 0
) -> BertForSequenceClassification:
    """Return a copy of a BERT in float64, after these of `CHANGES` in every layer, by `seed`."""
    model = copy.deepcopy(model).double()
    random = torch.Generator().manual_seed(seed)
    for change in changes:
        _CHANGES[change](model.bert, partial(_normal, random))
    return model


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def _key_bias(bert, draw: Callable) -> None:
    for layer in bert.encoder.layer:
        bias = layer.attention.self.key.bias
        bias += draw(len(bias))


def _value_bias(bert, draw: Callable) -> None:
    for layer in bert.encoder.layer:
        bias, behind = layer.attention.self.value.bias, layer.attention.output.dense
        behind.bias -= behind.weight @ (shift := draw(len(bias)))
        bias += shift


def _query_and_key(bert, draw: Callable) -> None:
    for layer in bert.encoder.layer:
        query, key = layer.attention.self.query, layer.attention.self.key
        for matrix, head in _by_head(layer, draw):
            for part, basis in ((query, matrix.T), (key, matrix.inverse())):
                part.weight[head] = basis @ part.weight[head]
                part.bias[head] = basis @ part.bias[head]


def _value_basis(bert, draw: Callable) -> None:
    for layer in bert.encoder.layer:
        value, behind = layer.attention.self.value, layer.attention.output.dense
        for matrix, head in _by_head(layer, draw):
            value.weight[head] = matrix.T @ value.weight[head]
            value.bias[head] = matrix.T @ value.bias[head]
            behind.weight[:, head] = behind.weight[:, head] @ matrix.inverse().T


def _by_head(layer, draw: Callable) -> Iterator[tuple[Tensor, slice]]:
    """An invertible matrix for each head, and the head's rows."""
    size = layer.attention.self.attention_head_size
    for head in range(layer.attention.self.num_attention_heads):
        rotation = torch.linalg.qr(draw(size, size)).Q
        yield rotation * draw(size).exp(), slice(head * size, (head + 1) * size)


def _layer_input(bert, draw: Callable) -> None:
    norms = [bert.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in bert.encoder.layer)]
    for norm, layer in zip(norms, bert.encoder.layer, strict=False):
        norm.bias += (shift := draw(len(norm.bias)))
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.bias -= part.weight @ shift
        layer.attention.self.value.bias -= layer.attention.self.value.weight @ shift
        layer.attention.output.dense.bias -= shift  # the residual connection brings it too


def _embeddings(bert, draw: Callable) -> None:
    words, positions = bert.embeddings.word_embeddings, bert.embeddings.position_embeddings
    shift = draw(words.weight.shape[1])
    words.weight += shift
    positions.weight -= shift


_CHANGES = {
    "key bias": _key_bias,
    "value bias": _value_bias,
    "query and key": _query_and_key,
    "value basis": _value_basis,
    "layer input": _layer_input,
    "embeddings": _embeddings,
}
