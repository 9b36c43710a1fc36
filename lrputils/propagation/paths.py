"""Relevance by the path through which it arrives in each layer: value, query, key or residual.

Relevance reaches a layer's input x in four ways: from the attention's values, its queries and its
keys, all three maps of x, and along the residual connection around the attention. Propagation is
linear in the relevance, so the four add up to the whole, and each can be followed separately down
to the words:

    R(x) = R_value(x) + R_query(x) + R_key(x) + R_residual(x),   R_p(x_i) = x_i · J_pᵀ g(p),

with J_p the derivative, by the composite's rules, of the path's tensor p with respect to x. Every
way from the logit to a word crosses each layer by exactly one of them. Under CP-LRP the queries and
the keys carry nothing. What a path carries down does not depend on how the layers on its way are
parameterised; what stands at a layer's own input does, since the bias of the LayerNorm below it
moves the zero of x (the book's page on what a function leaves open).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lrputils.model.architectures import Handle, describe
from lrputils.model.attention import stepwise
from lrputils.model.readout import (
    FIRST_BLOCK,
    GRADIENT_TOKENS,
    READOUTS,
    Reading,
    Target,
    pulled_back,
    read,
)
from lrputils.propagation.composites import ATTN_LRP, Composite, check_composite, installed

PATHS = ("value", "query", "key", "residual")
LAYER = "layer"


@torch.inference_mode(False)
def relevance_paths(
    model: Handle,
    inputs: Mapping[str, Any],
    composite: Composite = ATTN_LRP,
    *,
    target: Target = None,
    readout: str = "word",
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """Return relevance by the layer and the path through which it came, for every token.

    Args:
        composite: the rules; `ATTN_LRP` and `CP_LRP` are those of the paper.
        readout: where the relevance is read. "layer": at the layer's own input, where the path
            ends. "word", "sum", "post-norm": carried on from there, through all layers below, down
            to that read-out of the embeddings.
        batch_tokens: how many tokens' gradients go back at once; bounds the memory.

    Returns:
        `(layers, paths, batch, tokens)`, paths in the order of `PATHS`, 0 at padding; float32, for
        a float64 model float64. For "layer" the paths of a layer sum to the relevance at its input.
        For the others they sum, in every layer, to the same whole: the map of `attribute(model,
        inputs, composite, readout=readout)`.

    Raises:
        TypeError: the model is not covered, or `composite` is no composite.
        ValueError: an unknown read-out, a layer that the model does not have, or what `read`
            refuses.
    """
    if readout not in (LAYER, *READOUTS):
        raise ValueError(f"unknown read-out {readout!r}; there are {[LAYER, *READOUTS]}")
    architecture = describe(model)
    check_composite(composite, architecture)
    factors = []

    def tapped(operation: str, layer: int | None) -> Callable:
        rule = composite.rule(operation, layer)
        if operation != "attention":
            return rule

        def kept(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            factors.append((v, q, k))  # in the graph
            return rule(q, k, v)

        kept.inside = rule.inside
        return kept

    place = FIRST_BLOCK if readout == LAYER else readout
    with installed(architecture, tapped, stepwise):
        reading = read(architecture, inputs, target=target, readout=place)
    whole, by_path = _at_inputs(reading, reading.inputs, factors)
    if readout == LAYER:
        layers = zip(by_path, whole, reading.inputs, strict=True)
        scores = [reading.relevance(torch.cat([three, x[None]]), at) for three, x, at in layers]
        attention, total = torch.stack(scores).split((3, 1), dim=1)
    else:
        down = _carried(reading, reading.inputs, by_path, whole[0], batch_tokens)
        scores = torch.stack([reading.relevance(gradient) for gradient in down])
        attention, total = scores[:-1].unflatten(0, (-1, 3)), scores[-1:]
    return torch.cat([attention, total - attention.sum(1, keepdim=True)], dim=1)


def _at_inputs(
    reading: Reading, inputs: Sequence[Tensor], factors: Sequence[tuple[Tensor, Tensor, Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """What flows back to each layer's input: in all, and `(3, …)` by value, query and key alone."""
    tensors = [*inputs, *(factor for layer in factors for factor in layer)]
    whole = torch.autograd.grad(
        reading.output.sum(), tensors, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    arriving = iter(whole[len(inputs) :])
    by_path = [
        torch.stack(
            [
                torch.autograd.grad(factor, hidden, next(arriving), retain_graph=True)[0]
                for factor in layer
            ]
        )
        for hidden, layer in zip(inputs, factors, strict=True)
    ]
    return list(whole[: len(inputs)]), by_path


def _carried(
    reading: Reading,
    inputs: Sequence[Tensor],
    by_path: Sequence[Tensor],
    whole: Tensor,
    batch_tokens: int,
) -> Tensor:
    """What flows back to the read-out from each layer's three paths, in order, and in all."""
    down = by_path[-1]
    for layer in reversed(range(len(inputs) - 1)):
        down = pulled_back(inputs[layer + 1], inputs[layer], down, batch_tokens)
        down = torch.cat([by_path[layer], down])
    return pulled_back(inputs[0], reading.site, torch.cat([down, whole[None]]), batch_tokens)
