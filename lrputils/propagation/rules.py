"""Propagation rules: the forward pass is unchanged, the backward pass is replaced.

Relevance at a tensor x is R(x) = x ⊙ g, where g is what flows back instead of the gradient. With
ε → 0 every LRP-ε rule is then a statement about g alone, and each function here is one such
statement: it returns exactly what the plain operation returns, and only its gradient differs. The
explicit ε-rules, with their sign(z)·ε, are in `tests/reference.py`, and agree with these at ε = 0.

Sources: LRP-ε, Bach et al. (2015); AttnLRP, Achtibat et al. (2024), section 3.3; CP-LRP, Ali et al.
(2022), sections 3.1-3.2. A linear map z = W·x + b needs no function of its own. Its ε-rule,

    R(x_i) = Σ_j  W_ji x_i / (z_j + ε sign z_j) · R(z_j)      (You et al., Eq. 1),

is x_i · Σ_j W_ji g(z_j) at ε = 0: the plain gradient; the bias keeps its own share b_j g(z_j).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function


class _Function(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Callable[[], Tensor], back: Callable[[Tensor], Tensor | None]
    ) -> Tensor:
        ctx.back = back
        ctx.set_materialize_grads(False)
        return y()  # no argument, which would be returned as a view and could not be overwritten

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        return None if gradient is None else ctx.back(gradient), None, None


def with_backward(x: Tensor, y: Tensor, back: Callable[[Tensor], Tensor | None]) -> Tensor:
    """Return y, from which `back(g(y))` flows to x when the backward pass runs; None is nothing."""
    return _Function.apply(x, y.detach, back)


def scaled(x: Tensor, factor: float | Tensor) -> Tensor:
    """Return x, and let only a share of its gradient pass: g(x) → factor · g(x), entry by entry."""
    return with_backward(x, x, lambda gradient: gradient * factor)


class Shares:
    """A rule for a product, as data: how much of its gradient each factor keeps.

    A factor with a share of 0 is a constant: no graph leads to it.

    Attributes:
        shares: a number a factor; or what `keep` of another rule takes.
        inside: of attention, what takes the kernel's place: from a call and the kernel, the same
            output with other gradients. None is the kernel itself.
        half: of attention that is no one call, the share of each factor of its products; None
            where the rule has no such form.
        softmax: of such attention, the share of the weights.

    A share that is a function is asked for when the backward pass runs.
    """

    def __init__(
        self,
        *shares: Any,
        inside: Callable[..., Tensor] | None = None,
        half: Any = None,
        softmax: Any = 1,
    ):
        self.shares, self.inside, self.half, self.softmax = shares, inside, half, softmax

    def __call__(self, *factors: Tensor) -> tuple[Tensor, ...]:
        """Return the factors as they are, with gradients that keep their shares."""
        return tuple(map(self.keep, factors, self.shares))

    def keep(self, factor: Tensor, share: Any) -> Tensor:
        """Return a factor whose gradient keeps this share."""
        if callable(share):
            return with_backward(factor, factor, lambda g: g * share() if share() else None)
        if share == 0:
            return factor.detach()
        return factor if share == 1 else scaled(factor, share)

    def apart(self, factor: Tensor) -> Tensor:
        """Return a factor of a product that is no part of one attention call."""
        return self.keep(factor, 1 if self.half is None else self.half)

    def weighing(self, weights: Tensor) -> Tensor:
        """Return the weights of a softmax that is no part of one attention call.

        Raises:
            TypeError: the rule is one for whole attention calls.
        """
        if self.half is None:
            raise TypeError(
                "this rule is one for attention in one call, or as its two products and softmax; "
                "this model's is another: use 'attnlrp' or 'cp-lrp'"
            )
        return self.keep(weights, self.softmax)


# --- products y = Σ_k a_k b_k ---------------------------------------------------------------------

PRODUCT = {
    # AttnLRP: each factor gets half of the relevance, R(a_k) = a_k b_k / (2 y) · R(y), and the same
    # for b_k (You et al., Eqs. 3a to 4b, for the two products of attention).
    "halved": Shares(1 / 2, 1 / 2),
    # CP-LRP for a gated y = gate ⊙ up: R(up) = gate · up / y · R(y) = R(y), and R(gate) = 0.
    "gate-held": Shares(0, 1),
    # SwiGLU's y = x ⊙ σ(x) ⊙ up as a product of three, whose σ passes what it gets on to x: one
    # node of three, and x ⊙ (σ(x) ⊙ up) or (x ⊙ up) ⊙ σ(x). "halved" is (x ⊙ σ(x)) ⊙ up.
    "third-up": Shares(2 / 3, 1 / 3),
    "quarter-up": Shares(3 / 4, 1 / 4),
    # No rule: both factors get their plain gradient, and y's relevance counts twice.
    "gradient": Shares(1, 1),
}


# --- a function y = f(x_1, …, x_n) of several factors, as one unit --------------------------------
#
# What a unit's factors get depends on f and not on how f is computed inside. Both rules give every
# factor of a product of n the share 1/n, however it is bracketed.


def equal_shares(function: Callable[..., Tensor], *factors: Tensor) -> Tensor:
    """Each of n factors keeps 1/n of its gradient: g(x_k) = 1/n · ∂f/∂x_kᵀ g(y).

    The factors get all of y's relevance where f is homogeneous of degree n (Euler's theorem), as a
    product is. A softmax inside is not.
    """
    return function(*(scaled(x, 1 / len(factors)) for x in factors))


def path_mean(function: Callable[..., Tensor], *factors: Tensor, nodes: int = 4) -> Tensor:
    """Each factor keeps its mean gradient on the way from zero: ∫₀¹ ∂f/∂x_k (t·x)ᵀ g(y) dt.

    Relevance is then Integrated Gradients (Sundararajan et al., 2017) of the unit alone, and where
    f(0) = 0 its factors get all of y's. Gauss-Legendre's quadrature is exact for products of up to
    2 · `nodes` factors.
    """
    points, weights = np.polynomial.legendre.leggauss(nodes)
    mean = 0.0
    for point, weight in zip(points, weights, strict=True):
        away = (1 - point) / 2  # 1 − t
        mean = mean + weight / 2 * function(*(x - away * x.detach() for x in factors))
    with torch.no_grad():
        value = function(*factors)
    return value + (mean - mean.detach())


UNITS = {"thirds": equal_shares, "path": path_mean}


# --- attention O = A·V with A = softmax(Z), Z = s·Q·Kᵀ: shares of Q, K and V ----------------------


def _identity_softmax(z: Tensor, dim: int) -> Tensor:
    """A = softmax(Z) with the identity rule in place of You et al., Eq. 5: R(Z) = R(A).

    So g(Z) = A / Z · g(A), and 0 where Z = 0; near Z = 0 the ratio has no bound. The paper names it
    for its layer ablation.
    """
    return identity_rule(partial(torch.softmax, dim=dim), z)


# AttnLRP halves both products and keeps the softmax's own Jacobian. O_jp = Σ_i A_ji V_ip (You et
# al., Eqs. 3a and 3b):
#     R(V_ip) = Σ_j A_ji V_ip / (2 O_jp) · R(O_jp),   R(A_ji) = Σ_p A_ji V_ip / (2 O_jp) · R(O_jp);
# A = softmax(Z), a Taylor expansion whose bias is dropped (You et al., Eq. 5):
#     R(Z_ji) = Z_ji · (R(A_ji) − A_ji Σ_k R(A_jk)),
# which is Z ⊙ g(Z) with the softmax's own Jacobian; Z = s·Q·Kᵀ, halved again (You et al., Eqs. 4a
# and 4b):
#     R(Q_jd) = Σ_i s Q_jd K_id / (2 Z_ji) · R(Z_ji),   and the same for K.
# The shares are those that halving gives the bracketed product (q · k) · v: `experiments.products`.
_Q, _K, _V = 1 / 4, 1 / 4, 1 / 2
ATTENTION = {
    "attnlrp": Shares(_Q, _K, _V, half=1 / 2),
    # CP-LRP: A is a constant, so that O is linear in V, and V gets all of the relevance:
    #     R(V_ip) = Σ_j A_ji V_ip / O_jp · R(O_jp),   R(Q) = R(K) = 0.
    "cp": Shares(0, 0, 1, half=1, softmax=0),
    # Two controls between them: AttnLRP with its softmax closed, where what A would get is lost,
    # and CP-LRP with AttnLRP's softmax opened.
    "half-value": Shares(0, 0, _V),
    "whole-value": Shares(_Q, _K, 1),
    # AttnLRP with one way into its softmax closed: what queries, or keys, would get is lost.
    "query-closed": Shares(0, _K, _V),
    "key-closed": Shares(_Q, 0, _V),
    # AttnLRP with the softmax's rule taken literally as the identity.
    "identity": Shares(
        *(_Q, _K, _V), inside=lambda call, kernel: call.combined(call.weights(_identity_softmax))
    ),
    # Canonised, as `UNITS` has it: Q, K and V are the factors of one unit, the softmax inside.
    "thirds": Shares(1 / 3, 1 / 3, 1 / 3),
    "path": Shares(
        *(1, 1, 1),
        inside=lambda call, kernel: path_mean(
            lambda *factors: kernel(call.with_factors(*factors))[0], *call.factors
        ),
    ),
    # No rule: the plain gradient through both products and the softmax.
    "gradient": Shares(1, 1, 1, half=1),
}


# --- activations ----------------------------------------------------------------------------------


def identity_rule(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The identity rule for an elementwise y = f(x) with f(0) = 0: R(x) = R(y).

    So g(x) = y / x · g(y), and g(x) = 0 where x = 0.
    """
    with torch.no_grad():
        y = function(x)
        ratio = (y / x).nan_to_num_(0.0, 0.0, 0.0)
    return with_backward(x, y, ratio.mul)


# None is the plain gradient.
ACTIVATION = {"identity": identity_rule, "gradient": None}


# --- normalisation --------------------------------------------------------------------------------


def held_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mean: bool = False,
) -> Tensor:
    """LayerNorm whose deviation is a constant; its arguments are those of torch's `layer_norm`.

    y = w ⊙ (x − mean x) / σ + b is then linear in x, with bias b: You et al., Eq. 1 applies, and
    g(x) = (w ⊙ g(y) − mean(w ⊙ g(y))) / σ. With the `mean` held, too, as in one published CP-LRP
    (github.com/AmeenAli/XAI_Transformers, read), g(x) = w ⊙ g(y) / σ.

    RMSNorm, y = w ⊙ x / ρ with ρ = √(mean x² + ε), needs no function: with ρ held it is a product
    with a constant.
    """
    y, _, inverse_std = torch.native_layer_norm(input.detach(), normalized_shape, weight, bias, eps)
    dims = [*range(-len(normalized_shape), 0)]

    def _back(gradient: Tensor) -> Tensor:
        gradient = gradient if weight is None else gradient * weight
        if not mean:
            gradient = gradient - gradient.mean(dims, keepdim=True)
        return gradient * inverse_std.to(gradient.dtype)

    return with_backward(input, y, _back)


# None is the plain gradient, of what a norm divides by, too.
NORM: dict[str, Callable | None] = {
    "held-std": held_layer_norm,
    "held": partial(held_layer_norm, mean=True),
    "gradient": None,
}
