"""Composites: which propagation rule goes to which operation, and the context that installs them.

A composite is a value. `ATTN_LRP` and `CP_LRP` are the two of the paper; `ATTN_LRP.bypass({5, 6})`
uses CP-LRP's rule for the attention in two layers; `CP_LRP.but(norm="gradient")` is another one.
`with propagating(model, composite):` changes only what flows back through that model, in this
thread, until the block ends: the forward pass computes what it computed before.

| operation | AttnLRP | CP-LRP |
|---|---|---|
| attention | halved products, the softmax's Jacobian | A held constant, all relevance to V |
| product (gate ⊙ up in SwiGLU) | halved | gate held constant |
| activation, and the head's | identity rule | identity rule |
| norm | standard deviation held constant | standard deviation held constant |
| linear, embedding, residual sum | plain gradient | plain gradient |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.attention import (
    AttentionCall,
    AttentionFunction,
    Route,
    fused,
    routed,
)
from lrputils.model.forwards import Forward, replaced
from lrputils.propagation import rules

# operation → name of a rule → the rule
RULES: Mapping[str, Mapping[str, Callable]] = {
    "attention": rules.ATTENTION,
    "product": rules.PRODUCT,
    "activation": rules.ACTIVATION,
    "head": rules.ACTIVATION,
    "norm": rules.NORM,
}


@dataclass(frozen=True)
class Composite:
    """A rule for each operation, and exceptions in single layers.

    Attributes:
        attention: "attnlrp", "cp", "gradient"; the block as one unit, "thirds" or "path"; the
            controls between the first two, "half-value" and "whole-value"; AttnLRP with one way
            into its softmax closed, "query-closed" or "key-closed"; with R(Z) = R(A), "identity".
        product: the gated product of SwiGLU: "halved", "gate-held" or "gradient"; other bracketings
            of it, "third-up" and "quarter-up".
        activation: "identity" or "gradient".
        head: the activation of the classification head, outside the layers; the same choice.
        norm: "held-std", "held" (the mean, too) or "gradient".
        exceptions: (layer, operation) → rule, as sorted pairs; layers count from 0. Made by `but`.
    """

    attention: str
    product: str
    activation: str = "identity"
    head: str = "identity"
    norm: str = "held-std"
    exceptions: tuple[tuple[tuple[int, str], str], ...] = ()

    def __post_init__(self) -> None:
        chosen = [(operation, getattr(self, operation)) for operation in RULES]
        chosen += [(operation, rule) for (_, operation), rule in self.exceptions]
        for operation, rule in chosen:
            if rule not in RULES[operation]:
                known = sorted(RULES[operation])
                raise ValueError(f"unknown rule {rule!r} for {operation}; there are {known}")

    def but(self, *, layers: Iterable[int] | None = None, **changes: str) -> Composite:
        """The same composite with other rules, everywhere or only in `layers` (counted from 0).

        Example: `CP_LRP.but(norm="gradient")`, `ATTN_LRP.but(layers=range(6), attention="cp")`.

        Raises:
            ValueError: an unknown operation or rule; the message lists those that there are.
        """
        for stray in changes.keys() - RULES.keys():
            raise ValueError(f"unknown operation {stray!r}; there are {sorted(RULES)}")
        if layers is None:
            return replace(self, **changes)  # type: ignore[arg-type]
        exceptions = dict(self.exceptions)
        for layer in layer_numbers(layers):
            exceptions |= {(layer, operation): rule for operation, rule in changes.items()}
        return replace(self, exceptions=tuple(sorted(exceptions.items())))

    def bypass(self, layers: Iterable[int]) -> Composite:
        """CP-LRP's rules for the attention and the gated product in `layers` (counted from 0).

        The paper's layer-wise ablation: no relevance through the softmax of these layers. Bypassing
        every layer of `ATTN_LRP` is `CP_LRP`; bypassing none is `ATTN_LRP`.
        """
        return self.but(
            layers=layer_numbers(layers), attention=CP_LRP.attention, product=CP_LRP.product
        )

    def rule(self, operation: str, layer: int | None) -> Callable:
        """The rule of an operation in a layer; `None` is outside the layers."""
        for place, name in self.exceptions:
            if place == (layer, operation):
                return RULES[operation][name]
        return RULES[operation][getattr(self, operation)]

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers with rules of their own."""
        return tuple(sorted({layer for (layer, _), _ in self.exceptions}))


ATTN_LRP = Composite(attention="attnlrp", product="halved")
CP_LRP = Composite(attention="cp", product="gate-held")
CANONISED_LRP = ATTN_LRP.but(attention="thirds")
GRADIENT = Composite(
    attention="gradient",
    product="gradient",
    activation="gradient",
    head="gradient",
    norm="gradient",
)


# Names the rule of an operation in a layer, as `Composite.rule` does.
Rulebook = Callable[[str, int | None], Callable]


@contextmanager
def propagating(model: Handle, composite: Composite) -> Iterator[Architecture]:
    """Inside the block, gradients through `model` follow the rules of `composite`.

    The forward pass is unchanged. Relevance at a tensor x is x times what flows back to it. Only
    this thread is affected, and the model is restored when the block ends, also by an exception. A
    method that takes gradients (Gradient × input, Integrated Gradients) follows the rules too when
    it runs inside the block.

    Raises:
        TypeError: the model is not covered, or `composite` is no composite.
        ValueError: the composite names a layer that the model does not have.
        RuntimeError: rules are already installed in this model, in this thread.
    """
    architecture = describe(model)
    check_composite(composite, architecture)
    with installed(architecture, composite.rule):
        yield architecture


def check_composite(composite: Composite, architecture: Architecture) -> None:
    """Refuse what is no composite for this model, or names layers that it does not have."""
    if not isinstance(composite, Composite):
        raise TypeError(f"a composite is wanted, as ATTN_LRP or CP_LRP; got {composite!r}")
    if beyond := [layer for layer in composite.layers if layer >= architecture.layers]:
        raise ValueError(
            f"layers {beyond} do not exist: this {type(architecture.model).__name__} has "
            f"{architecture.layers} layers, counted from 0 to {architecture.layers - 1}"
        )


@contextmanager
def installed(
    architecture: Architecture,
    rulebook: Rulebook,
    kernel: AttentionFunction = fused,
) -> Iterator[Route]:
    """Install the rules that `rulebook` names; `kernel` then computes the attention."""

    def _attention(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        rule = rulebook("attention", call.layer)
        call = call.with_factors(*rule(*call.factors))
        inside = getattr(rule, "inside", None)
        return (inside(call, kernel), None) if inside else kernel(call)

    with ExitStack() as undo:
        route = undo.enter_context(routed(architecture, _attention))
        undo.enter_context(replaced(_forwards(architecture, rulebook, route)))
        yield route


def _forwards(
    architecture: Architecture, rulebook: Rulebook, route: Route
) -> Mapping[nn.Module, Forward]:
    """The replacement for each norm, activation and gated product of the model."""
    kind = architecture.kind

    def _norm(module: nn.Module, inner: Forward, x: Tensor) -> Tensor:
        return rulebook("norm", route.layer)(inner, module, x, kind.gain)

    def _activation(module: nn.Module, inner: Forward, x: Tensor) -> Tensor:
        return rulebook("head" if route.layer is None else "activation", route.layer)(inner, x)

    def _gated_mlp(module: nn.Module, inner: Forward, x: Tensor) -> Tensor:
        gated = module.act_fn(module.gate_proj(x))
        left, right = rulebook("product", route.layer)(gated, module.up_proj(x))
        return module.down_proj(left * right)

    def _tanh_head(module: nn.Module, inner: Forward, *args: Any, **kwargs: Any) -> Any:
        with _TanhRule(rulebook("head", None)):
            return inner(*args, **kwargs)

    ruled = {"norm": _norm, "activation": _activation, "product": _gated_mlp, "head": _tanh_head}
    return {
        module: partial(ruled[operation], module)
        for module in architecture.model.modules()
        if (operation := kind.operation(module))
    }


class _TanhRule(TorchFunctionMode):
    """Gives `torch.tanh`, called as a function, the activation's rule, and changes nothing else."""

    def __init__(self, rule: Callable):
        super().__init__()
        self.rule = rule

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        # Inside here the mode is off, so that the rule's own call of tanh is the plain one.
        if function is torch.tanh:
            return self.rule(torch.tanh, *args)
        return function(*args, **(kwargs or {}))


def layer_numbers(layers: Iterable[int]) -> frozenset[int]:
    """Layers, counted from 0, as a set of plain numbers; refuse what is no collection of them."""
    if not isinstance(layers, Iterable) or isinstance(layers, str):
        instead = "()" if layers is None else f"{{{layers!r}}}"
        raise ValueError(f"layers come as a set, list or range; got {layers!r}: write {instead}")
    layers = list(layers)
    wrong = [x for x in layers if not isinstance(x, Integral) or x < 0]
    if wrong:
        raise ValueError(f"layers are whole numbers from 0 on; got {wrong}")
    return frozenset(map(int, layers))
