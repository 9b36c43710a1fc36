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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from lrputils.model.architectures import WITHOUT_RULES, Architecture, Handle
from lrputils.model.attention import AttentionCall, AttentionFunction, fused
from lrputils.model.operations import Operations, Rulebook, routed
from lrputils.model.proof import laid_out, measured, short_text, state_of
from lrputils.model.readout import Target, read
from lrputils.propagation import rules

# operation → name of a rule → the rule
RULES: Mapping[str, Mapping[str, Callable | None]] = {
    "attention": rules.ATTENTION,
    "product": rules.PRODUCT,
    "activation": rules.ACTIVATION,
    "head": rules.ACTIVATION,
    "norm": rules.NORM,
}

# Kinds of operations that are not linear.
_GATES = {"sigmoid", "softplus", "exp", "hardsigmoid"}
_BENT = "activation", "curve", "held", "softmax", "times", "divided"


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

    def rule(self, operation: str, layer: int | None) -> Callable | None:
        """The rule of an operation in a layer; layer None is outside the layers."""
        exceptions: dict[Any, str] = dict(self.exceptions)
        return RULES[operation][exceptions.get((layer, operation), getattr(self, operation))]

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


# Gaps up to this size are rounding, of what flows in float32; below it, a twentieth.
TOLERANCE = 1e-4


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
    architecture = covered(model, composite)
    with installed(architecture, composite.rule):
        yield architecture


def covered(handle: Handle, composite: Composite = ATTN_LRP) -> Architecture:
    """A model whose rules were proved on itself, once, by two short passes without constants.

    There CP-LRP's relevance of the words has to sum to the output, with the gates of products held
    and with their products halved.

    Raises:
        TypeError: it does not, by more than `TOLERANCE`, or there is an operation without a rule;
            the message names it. Or `composite` is no composite.
        ValueError: the model does not run (see `lrputils.model.proof.prove`), or has not all layers
            that the composite names.
    """
    architecture = laid_out(handle)
    model = architecture.model
    state = "rules", state_of(architecture)
    if refusal := measured(model, state, partial(_refusal, architecture)):
        raise TypeError(f"{refusal}. {WITHOUT_RULES}")
    if not isinstance(composite, Composite):
        raise TypeError(f"a composite is wanted, as ATTN_LRP or CP_LRP; got {composite!r}")
    if beyond := [layer for layer in composite.layers if layer >= architecture.layers]:
        raise ValueError(
            f"layers {beyond} do not exist: this {type(model).__name__} has {architecture.layers} "
            f"layers, counted from 0 to {architecture.layers - 1}"
        )
    return architecture


def is_covered(handle: Handle) -> bool:
    """Whether rules cover a model: see `covered`."""
    try:
        covered(handle)
    except (TypeError, ValueError):
        return False
    return True


def _refusal(architecture: Architecture) -> str:
    """Why rules do not cover a model; empty where they do."""
    name, inputs = type(architecture.model).__name__, short_text(architecture)
    for composite in (CP_LRP, CP_LRP.but(product="halved")):
        try:
            gaps, operations = conserved(architecture, inputs, None, composite)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return f"{name} is not covered by rules: {str(error).splitlines()[0]}"
        if not gaps[0] <= tolerance(architecture):
            met = (name for name, kind in operations.met.items() if kind in _BENT)
            return (
                f"{name} is not covered by rules: without constants CP-LRP loses or makes "
                f"{gaps[0]:.1g} of the relevance that flows; of its operations these are not "
                f"linear: {', '.join(sorted(met))}"
            )
        if operations.met.keys() & _GATES:
            break  # a gate's relevance, which "halved" gives it, goes through its own Jacobian
    return ""


def tolerance(architecture: Architecture) -> float:
    """The largest gap that is rounding at a model's precision."""
    wide = torch.finfo(architecture.weights[0].dtype).bits >= 32
    return TOLERANCE if wide else 500 * TOLERANCE


@torch.inference_mode(False)
def conserved(
    architecture: Architecture, inputs: Mapping[str, Any], target: Target, composite: Composite
) -> tuple[tuple[float, ...], Operations]:
    """What relevance loses without constants: at the words, then at each layer's input.

    Returns:
        the largest |Σ R − output| over the texts, as a share of max(|output|, Σ |R|), a place; and
        the operations that were met.
    """
    with installed(architecture, composite.rule, constants=False) as operations:
        reading = read(architecture, inputs, target=target)
    places, batch = [reading.site], reading.site.shape[:2]
    if not architecture.config.is_encoder_decoder:  # else no layer holds all that is read
        places += [x for x in reading.inputs if x.requires_grad and x.shape[:2] == batch]
    places += [] if reading.start is None else [reading.start]
    flowing = torch.autograd.grad(
        reading.output.sum(), places, allow_unused=True, materialize_grads=True
    )
    received = [
        (state * gradient).detach().double().flatten(2).sum(2)
        for state, gradient in zip(places, flowing, strict=True)
    ]
    if reading.start is not None:
        received[0] = torch.cat([received[0], received.pop()], dim=1)
    gaps = []
    for state, relevance in zip(places, received, strict=False):
        output = reading.output.detach().double()
        scale = torch.maximum(relevance.abs().sum(1), output.abs())
        off = (relevance.sum(1) - output).abs() / scale.clamp(min=torch.finfo(state.dtype).tiny)
        gaps.append(float(off.max()))
    return tuple(gaps), operations


@contextmanager
def installed(
    architecture: Architecture,
    rulebook: Rulebook,
    kernel: AttentionFunction = fused,
    *,
    constants: bool = True,
) -> Iterator[Operations]:
    """Install the rules that `rulebook` names; `kernel` then computes the attention.

    Without `constants` no summand is added that does not depend on the text.
    """

    def _attention(call: AttentionCall) -> tuple[Tensor, Tensor | None] | None:
        rule = rulebook("attention", call.layer)
        call = call.with_factors(*rule(*call.factors))
        inside = getattr(rule, "inside", None)
        return (inside(call, kernel), None) if inside else kernel(call)

    with routed(architecture, _attention, rulebook, constants=constants) as operations:
        yield operations


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
