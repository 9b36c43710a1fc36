"""Many bypass variants of AttnLRP in one forward pass.

A variant is a set of layers whose attention (and gated product) gets CP-LRP's rule. All variants
share the forward pass, and two variants that agree on every layer from l on share the backward pass
down to l. So the backward pass goes layer by layer, from the last to the first, and carries one
gradient for each *different* suffix: the paper's 3 × L ablations (first k, last k, layer k alone)
need about half of 3 × L × L block passes, and none of their 3 × L × L forward block passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from lrputils.model.architectures import Handle, describe
from lrputils.model.attention import stepwise
from lrputils.model.readout import GRADIENT_TOKENS, Reading, Target, pulled_back, read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, check_layers, installed, layer_numbers

Suffix = frozenset[int]


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
    architecture = describe(model)
    variants = [layer_numbers(layers) for layers in layer_sets]
    if not variants:
        raise ValueError("layer_sets is empty: pass at least one set of layers, [()] for none")
    check_layers(frozenset().union(*variants), architecture)
    switch = _Switch()
    with installed(architecture, switch.rule, stepwise):
        reading = read(architecture, inputs, target=target, readout=places[0])
    # The head is the same for every variant.
    last = torch.autograd.grad(reading.output.sum(), reading.outputs[-1], retain_graph=True)
    gradients = {frozenset(): last[0]}
    for layer in reversed(range(architecture.layers)):
        gradients = _through_block(layer, gradients, variants, reading, switch, batch_tokens)
    below, found = torch.stack(list(gradients.values())), {}
    for place in places:
        site, value = reading.places[place]
        down = pulled_back(reading.inputs[0], site, below, batch_tokens)
        pairs = zip(gradients, down, strict=True)
        scores = {suffix: reading.relevance(x, value) for suffix, x in pairs}
        found[place] = torch.stack([scores[variant] for variant in variants]).to(torch.float32)
    return found


class _Switched(Function):
    """Returns its input; its backward pass asks which share of the gradient passes now."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, switch: _Switch, layer: int | None, shares: tuple) -> Tensor:
        ctx.switch, ctx.layer, ctx.shares = switch, layer, shares
        ctx.set_materialize_grads(False)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple:
        share = ctx.shares[ctx.layer in ctx.switch.bypassed]
        passed = None if gradient is None or share == 0 else gradient * share
        return passed, None, None, None


class _Switch:
    """Chooses between two composites' shares when the backward pass runs.

    `bypassed` holds the layers that follow CP-LRP right now; the others follow AttnLRP.
    """

    def __init__(self) -> None:
        self.bypassed: Suffix = frozenset()

    def rule(self, operation: str, layer: int | None) -> Any:
        """The rule of an operation in a layer, as in `Composite.rule`."""
        attnlrp, cp = (composite.rule(operation, layer) for composite in (ATTN_LRP, CP_LRP))
        if attnlrp is cp:
            return attnlrp
        shares = list(zip(attnlrp.shares, cp.shares, strict=True))
        return lambda *factors: tuple(
            _Switched.apply(x, self, layer, share) for x, share in zip(factors, shares, strict=True)
        )


def _through_block(
    layer: int,
    gradients: Mapping[Suffix, Tensor],
    variants: Sequence[Suffix],
    reading: Reading,
    switch: _Switch,
    batch_tokens: int,
) -> dict[Suffix, Tensor]:
    """From gradients at a layer's output, by suffix above it, to those at its input."""
    wanted = {frozenset(i for i in variant if i >= layer) for variant in variants}
    passed: dict[Suffix, Tensor] = {}
    for bypass in (False, True):
        suffixes = sorted((s for s in wanted if (layer in s) == bypass), key=sorted)
        switch.bypassed = frozenset({layer} if bypass else ())
        if suffixes:
            above = torch.stack([gradients[suffix - {layer}] for suffix in suffixes])
            below = pulled_back(reading.outputs[layer], reading.inputs[layer], above, batch_tokens)
            passed |= zip(suffixes, below, strict=True)
    return passed
