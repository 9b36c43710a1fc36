"""One function, other parameters (prop-gauge): changes of a BERT's weights that change no output.

A measure that moves under them describes the weights as stored and not the function. With H a
head, t, b and c any vectors, M and N any invertible matrices, and W_O, b_O the linear map behind
the block:

    inside         K → K + c;  V → V + b, b_O → b_O − W_O b;  Q_H → Q_H M, K_H → K_H M⁻ᵀ;
                   V_H → V_H N, W_O → W_O N⁻ᵀ on the head's columns
    layer input    x → x + t by the LayerNorm below; the biases of Q, K and V and b_O follow
    embeddings     every word embedding + t, every position embedding − t
"""

import copy

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

CHANGES = ("inside", "layer input", "embeddings")


@torch.no_grad()
def reparameterised(
    model: BertForSequenceClassification, *changes: str, seed: int = 0
) -> BertForSequenceClassification:
    """Return a copy of a BERT in float64, after these of `CHANGES` in every layer, by `seed`."""
    model = copy.deepcopy(model).double()
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    for change in changes:
        {"inside": _inside, "layer input": _layer_input, "embeddings": _embeddings}[change](
            model.bert, draw
        )
    return model


def _inside(bert, draw) -> None:
    for layer in bert.encoder.layer:
        own, behind = layer.attention.self, layer.attention.output.dense
        own.key.bias += draw(len(own.key.bias))
        behind.bias -= behind.weight @ (shift := draw(len(own.value.bias)))
        own.value.bias += shift
        size = own.attention_head_size
        for start in range(0, len(shift), size):
            head = slice(start, start + size)
            for_keys, for_values = (
                torch.linalg.qr(draw(size, size)).Q * draw(size).exp() for _ in range(2)
            )
            for part, basis in (
                (own.query, for_keys.T),
                (own.key, for_keys.inverse()),
                (own.value, for_values.T),
            ):
                part.weight[head] = basis @ part.weight[head]
                part.bias[head] = basis @ part.bias[head]
            behind.weight[:, head] = behind.weight[:, head] @ for_values.inverse().T


def _layer_input(bert, draw) -> None:
    norms = [bert.embeddings.LayerNorm, *(layer.output.LayerNorm for layer in bert.encoder.layer)]
    for norm, layer in zip(norms, bert.encoder.layer, strict=False):
        own, shift = layer.attention.self, draw(len(norm.bias))
        norm.bias += shift
        for part in (own.query, own.key, own.value):
            part.bias -= part.weight @ shift
        layer.attention.output.dense.bias -= shift  # the residual connection brings it too


def _embeddings(bert, draw) -> None:
    words, positions = bert.embeddings.word_embeddings, bert.embeddings.position_embeddings
    shift = draw(words.weight.shape[1])
    words.weight += shift
    positions.weight -= shift
