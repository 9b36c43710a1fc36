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
from torch import Tensor, nn
from torch.autograd import Function

from lrputils.architectures import Architecture, describe
from lrputils.forwards import Forward, replaced
from lrputils.propagation import ATTN_LRP, installed, layer_numbers
from lrputils.readout import Reading, Target, read

Suffix = frozenset[int]


@torch.inference_mode(False)
def layerwise_bypass(
    model: nn.Module,
    inputs: Mapping[str, Any],
    layer_sets: Sequence[Iterable[int]],
    *,
    target: Target = None,
    readout: str = "word",
    batch_tokens: int = 16384,
) -> Tensor:
    """AttnLRP with each of several sets of layers bypassed, as `attribute(…, bypass_layers=…)`.

    Args:
        model: a covered Hugging Face model in evaluation mode.
        inputs: what the tokenizer gives, `(batch, tokens)`.
        layer_sets: the variants: sets of layers, counted from 0. `[]` is AttnLRP itself.
        target: the class to explain; None is the class predicted on the whole input.
        readout: "word", "sum" or "post-norm".
        batch_tokens: how many tokens' gradients go back at once; bounds the memory.

    Returns:
        float32 `(variants, batch, tokens)`, 0 at padding.

    Raises:
        TypeError: the model is not covered.
        ValueError: no variants, a layer that the model does not have, or what `read` refuses.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} is not a positive number")
    architecture = describe(model)
    variants = _variants(layer_sets, architecture)
    switch, boundaries = _Switch(), _Boundaries(architecture)
    with installed(architecture, switch, fused=False), replaced(boundaries.forwards()):
        reading = read(architecture, inputs, target=target, readout=readout)
    rows = max(1, batch_tokens // reading.valid.numel())
    gradients = _start(reading, boundaries, variants)
    for layer in reversed(range(architecture.layers)):
        gradients = _through_block(layer, gradients, variants, boundaries, switch, rows)
    scores = _at_readout(reading, boundaries.inputs[0], gradients, rows)
    return torch.stack([scores[variant] for variant in variants]).to(torch.float32)


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
    """A rulebook whose attention and product rules are chosen when the backward pass runs.

    `bypassed` holds the layers that follow CP-LRP's rule right now. The shares are those of
    `rules.attnlrp_attention` and `rules.cp_attention`, and of the two rules for gated products.
    """

    ATTENTION = ((1 / 4, 0), (1 / 4, 0), (1 / 2, 1))  # Q, K, V: share under AttnLRP, CP-LRP
    PRODUCT = ((1 / 2, 0), (1 / 2, 1))  # gate, up

    def __init__(self) -> None:
        self.bypassed: Suffix = frozenset()

    def rule(self, operation: str, layer: int | None) -> Any:
        """The rule of an operation in a layer, as in `Composite.rule`."""
        shares = {"attention": self.ATTENTION, "product": self.PRODUCT}.get(operation)
        if shares is None:
            return ATTN_LRP.rule(operation, layer)
        return lambda *factors: tuple(
            _Switched.apply(x, self, layer, share) for x, share in zip(factors, shares, strict=True)
        )


class _Boundaries:
    """Keeps each layer's input and output in the graph of one forward pass."""

    def __init__(self, architecture: Architecture):
        self.architecture = architecture
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def forwards(self) -> dict[nn.Module, Forward]:
        """Replacements that look at what goes into and out of each block."""
        return dict.fromkeys(self.architecture.blocks, self._block)

    def _block(self, inner: Forward, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.inputs.append(hidden)
        output = inner(hidden, *args, **kwargs)
        self.outputs.append(output[0] if isinstance(output, tuple) else output)
        return output


def _variants(layer_sets: Sequence[Iterable[int]], architecture: Architecture) -> list[Suffix]:
    variants = [layer_numbers(layers) for layers in layer_sets]
    if not variants:
        raise ValueError("layer_sets is empty: pass at least one set of layers, [()] for none")
    wrong = sorted(frozenset().union(*variants) - set(range(architecture.layers)))
    if wrong:
        raise ValueError(
            f"layers {wrong} do not exist: this {type(architecture.model).__name__} has "
            f"{architecture.layers} layers, counted from 0 to {architecture.layers - 1}"
        )
    return variants


def _start(
    reading: Reading, boundaries: _Boundaries, variants: Sequence[Suffix]
) -> dict[Suffix, Tensor]:
    """The gradient at the last layer's output: the head is the same for every variant."""
    (gradient,) = torch.autograd.grad(
        reading.output.sum(), boundaries.outputs[-1], retain_graph=True
    )
    return {frozenset(): gradient}


def _through_block(
    layer: int,
    gradients: Mapping[Suffix, Tensor],
    variants: Sequence[Suffix],
    boundaries: _Boundaries,
    switch: _Switch,
    rows: int,
) -> dict[Suffix, Tensor]:
    """From gradients at a layer's output, by suffix above it, to those at its input."""
    wanted = {frozenset(i for i in variant if i >= layer) for variant in variants}
    passed: dict[Suffix, Tensor] = {}
    for bypass in (False, True):
        suffixes = sorted((s for s in wanted if (layer in s) == bypass), key=sorted)
        switch.bypassed = frozenset({layer} if bypass else ())
        above = [gradients[suffix - {layer}] for suffix in suffixes]
        below = _batched(boundaries.outputs[layer], boundaries.inputs[layer], above, rows)
        passed |= zip(suffixes, below, strict=True)
    return passed


def _at_readout(
    reading: Reading, first: Tensor, gradients: Mapping[Suffix, Tensor], rows: int
) -> dict[Suffix, Tensor]:
    """Relevance `(batch, tokens)` at the read-out tensor, below all layers."""
    if first is not reading.site:
        below = _batched(first, reading.site, list(gradients.values()), rows)
        gradients = dict(zip(gradients, below, strict=True))
    return {suffix: reading.relevance(gradient) for suffix, gradient in gradients.items()}


def _batched(output: Tensor, source: Tensor, gradients: list[Tensor], rows: int) -> list[Tensor]:
    """Vector-Jacobian products of one map for several gradients, `rows` of them at once."""
    results: list[Tensor] = []
    for start in range(0, len(gradients), rows):
        chunk = torch.stack(gradients[start : start + rows])
        (below,) = torch.autograd.grad(
            output, source, chunk, retain_graph=True, is_grads_batched=True
        )
        results.extend(below)
    return results
