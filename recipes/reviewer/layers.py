"""A shallow network, trained several times as fast, to which layers are then added."""

from __future__ import annotations

import copy
import re

import torch
from torch import nn
from transformers import BertForSequenceClassification

_LAYER = re.compile(r"(?<=encoder\.layer\.)\d+")


def deepened(shallow: BertForSequenceClassification, layers: int) -> BertForSequenceClassification:
    """Return a classifier with layers added until there are `layers`.

    Each layer is followed by copies of it that at first pass on what they get, nearly: what they
    would add to it is multiplied by zero. So nothing learned is lost, and the copies, whose
    attention is a trained one, learn what to add: block expansion, Wu et al. 2024, "LLaMA Pro"
    (arXiv 2401.02415), here for layers that normalise last.
    """
    few, state = shallow.config.num_hidden_layers, shallow.state_dict()
    config = copy.deepcopy(shallow.config)
    config.num_hidden_layers = layers
    deep = BertForSequenceClassification(config)
    origins = [layer * few // layers for layer in range(layers)]
    names = {
        name: _LAYER.sub(lambda i: str(origins[int(i[0])]), name) for name in deep.state_dict()
    }
    deep.load_state_dict({name: state[source] for name, source in names.items()})
    for layer in range(1, layers):
        if origins[layer] == origins[layer - 1]:
            _pass_on(deep.bert.encoder.layer[layer])
    return deep


@torch.no_grad()
def _pass_on(layer: nn.Module) -> None:
    """Make a layer pass on what it gets, which the same normalisation gave before.

    Over a token's features x = γn + β has mean(β) for mean and mean(γ²) + var(β) for variance, as
    far as n and γ, β are independent; a normalisation back to these changes little.
    """
    final = layer.output.LayerNorm
    scale = (final.weight.square().mean() + final.bias.var(correction=0)).sqrt()
    shift = final.bias.mean()
    for part in (layer.attention.output, layer.output):
        nn.init.zeros_(part.dense.weight)
        nn.init.zeros_(part.dense.bias)
        nn.init.constant_(part.LayerNorm.weight, scale.item())
        nn.init.constant_(part.LayerNorm.bias, shift.item())
