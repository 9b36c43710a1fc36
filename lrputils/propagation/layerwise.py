"""Relevance layer by layer: many bypass variants of AttnLRP, and the path by which it arrives.

*Variants*, in one forward pass. A variant is a set of layers whose attention (and gated product)
gets CP-LRP's rule. All variants share the forward pass, and two variants that agree on every layer
from l on share the backward pass down to l. So the backward pass goes layer by layer, from the last
to the first, and carries one gradient for each *different* suffix: the paper's 3 × L ablations
(first k, last k, layer k alone) need about half of 3 × L × L block passes, and none of their
3 × L × L forward block passes.

*Paths.* Relevance reaches a layer's input x in four ways: from the attention's values, its queries
and its keys, all three maps of x, and along the residual connection around the attention.
Propagation is linear in the relevance, so the four add up to the whole, and each can be followed
separately down to the words:

    R(x) = R_value(x) + R_query(x) + R_key(x) + R_residual(x),   R_p(x_i) = x_i · J_pᵀ g(p),

with J_p the derivative, by the composite's rules, of the path's tensor p with respect to x. Every
way from the logit to a word crosses each layer by exactly one of them. Under CP-LRP the queries and
the keys carry nothing. What a path carries down does not depend on how the layers on its way are
parameterised; what stands at a layer's own input does, since the bias of the LayerNorm below it
moves the zero of x (the book's page on what a function leaves open).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrputils.model.architectures import Handle
from lrputils.model.attention import Recorder, stepwise
from lrputils.model.readout import (
    GRADIENT_TOKENS,
    Target,
    pulled_back,
    read,
    readouts,
)
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    Composite,
    covered,
    installed,
    layer_numbers,
)
from lrputils.propagation.rules import Shares

PATHS = ("value", "query", "key", "residual")


def layerwise_bypass(
    model: Handle,
    inputs: Mapping[str, Any],
    layer_sets: Sequence[Iterable[int]],
    *,
    target: Target = None,
    readout: str = "word",
    batch_tokens: int = GRADIENT_TOKENS,
) -> Tensor:
    """AttnLRP with each of several sets of layers bypassed, as `attribute(…, bypass_layers=…)`.

    Args:
        layer_sets: the variants: sets of layers, counted from 0. `[]` is AttnLRP itself.
        readout: "word", "sum" or "post-norm".
        batch_tokens: how many tokens' gradients go back at once; bounds the memory.

    Returns:
        float32 `(variants, batch, tokens)`, 0 at padding.

    Raises:
        TypeError: the model is not covered.
        ValueError: no variants, a layer that the model does not have, or what `read` refuses.
    """
    return bypass_at([readout], model, inputs, layer_sets, target, batch_tokens)[readout]


@torch.inference_mode(False)
def bypass_at(
    places: Sequence[str],
    model: Handle,
    inputs: Mapping[str, Any],
    layer_sets: Sequence[Iterable[int]],
    target: Target = None,
    batch_tokens: int = GRADIENT_TOKENS,
) -> dict[str, Tensor]:
    """`layerwise_bypass` at several read-outs, whose passes through the layers are the same."""
    variants = [layer_numbers(layers) for layers in layer_sets]
    if not variants:
        raise ValueError("layer_sets is empty: pass at least one set of layers, [()] for none")
    architecture = covered(model, ATTN_LRP.bypass(frozenset().union(*variants)))
    switched: set[int] = set()  # the layers that follow CP-LRP right now
    with installed(architecture, partial(_switching, switched), stepwise):
        reading = read(architecture, inputs, target=target, readout=places[0])
    # The head is the same for every variant.
    last = torch.autograd.grad(reading.output.sum(), reading.outputs[-1], retain_graph=True)
    gradients: dict[frozenset[int], Tensor] = {frozenset(): last[0]}
    for layer in reversed(range(architecture.layers)):
        # From gradients at the layer's output, by suffix above it, to those at its input.
        wanted = {frozenset(i for i in variant if i >= layer) for variant in variants}
        passed: dict[frozenset[int], Tensor] = {}
        for bypassed in (frozenset(), frozenset({layer})):
            suffixes = sorted((s for s in wanted if s & {layer} == bypassed), key=sorted)
            if suffixes:
                switched.clear()
                switched.update(bypassed)
                above = torch.stack([gradients[suffix - {layer}] for suffix in suffixes])
                ends = reading.outputs[layer], reading.inputs[layer]
                passed |= zip(suffixes, pulled_back(*ends, above, batch_tokens), strict=True)
        gradients = passed
    below, found = torch.stack(list(gradients.values())), {}
    for place in places:
        site, value = reading.places[place]
        down = pulled_back(reading.inputs[0], site, below, batch_tokens)
        pairs = zip(gradients, down, strict=True)
        scores = {suffix: reading.relevance(x, value) for suffix, x in pairs}
        found[place] = torch.stack([scores[variant] for variant in variants]).to(torch.float32)
    return found


def _switching(switched: set[int], operation: str, layer: int | None) -> Any:
    """The rule of an operation in a layer, as in `Composite.rule`.

    It is AttnLRP's, or CP-LRP's in layers that are chosen when the backward pass runs.
    """
    found: Any = (each.rule(operation, layer) for each in (ATTN_LRP, CP_LRP))
    attnlrp, cp = found
    if attnlrp is cp:
        return attnlrp

    def _chosen(ours: Any, theirs: Any) -> Callable[[], Any]:
        return lambda: theirs if layer in switched else ours

    shares = map(_chosen, attnlrp.shares, cp.shares)
    softmax = _chosen(attnlrp.softmax, cp.softmax)
    return Shares(*shares, half=_chosen(attnlrp.half, cp.half), softmax=softmax)


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
        readout: where the relevance is read, carried on from the layer's input through all layers
            below: "word", "sum" or "post-norm".
        batch_tokens: how many tokens' gradients go back at once; bounds the memory.

    Returns:
        `(layers, paths, batch, tokens)`, paths in the order of `PATHS`, 0 at padding; float32, for
        a float64 model float64. In every layer they sum to the same whole, the map of
        `attribute(model, inputs, composite, readout=readout)`.

    Raises:
        TypeError: the model is not covered, or `composite` is no composite.
        ValueError: an unknown read-out, a layer that the model does not have, or what `read`
            refuses.
    """
    architecture = covered(model, composite)
    readouts(architecture)  # measured before the passes that are recorded
    with installed(architecture, composite.rule, stepwise) as operations:
        operations.function = blocks = Recorder(operations.function)
        reading = read(architecture, inputs, target=target, readout=readout)
    operations.check_calls()
    factors = [(call.value, call.query, call.key) for call in blocks.calls]
    below = reading.inputs
    tensors = [below[0], *(factor for layer in factors for factor in layer)]
    whole, *arriving = torch.autograd.grad(
        reading.output.sum(), tensors, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    down = whole.new_zeros(0, *whole.shape)
    for layer in reversed(range(len(below))):
        if len(down):
            down = pulled_back(below[layer + 1], below[layer], down, batch_tokens)
        pairs = zip(factors[layer], arriving[3 * layer : 3 * layer + 3], strict=True)
        three = [torch.autograd.grad(x, below[layer], g, retain_graph=True)[0] for x, g in pairs]
        down = torch.cat([torch.stack(three), down])
    down = pulled_back(below[0], reading.site, torch.cat([down, whole[None]]), batch_tokens)
    scores = torch.stack([reading.relevance(gradient) for gradient in down])
    attention, total = scores[:-1].unflatten(0, (-1, 3)), scores[-1:]
    return torch.cat([attention, total - attention.sum(1, keepdim=True)], dim=1)
