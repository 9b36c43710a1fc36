"""Propagation rules: the forward pass is unchanged, the backward pass is replaced.

Relevance at a tensor x is R(x) = x ⊙ g, where g is what flows back instead of the gradient. With
ε → 0 every LRP-ε rule is then a statement about g alone, and each function here is one such
statement: it returns exactly what the plain operation returns, and only its gradient differs. The
explicit ε-rules, with their sign(z)·ε, are in `tests/reference.py`, and agree with these at ε = 0.

Sources: LRP-ε, Bach et al. (2015); AttnLRP, Achtibat et al. (2024), section 3.3; CP-LRP, Ali et al.
(2022), sections 3.1-3.2. A linear map z = W·x + b needs no function of its own. Its ε-rule,

    R(x_i) = Σ_j  W_ji x_i / (z_j + ε sign z_j) · R(z_j)      (Eq. 1),

is x_i · Σ_j W_ji g(z_j) at ε = 0: the plain gradient; the bias keeps its own share b_j g(z_j).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Scaled(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return x, and let only a share of its gradient pass: g(x) → factor · g(x)."""
    return _Scaled.apply(x, factor)


def held(x: Tensor) -> Tensor:
    """Return x as a constant: no relevance passes, g(x) = 0."""
    return x.detach()


# --- products -------------------------------------------------------------------------------------


def halved_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """AttnLRP's rule for a bilinear y = Σ_k a_k b_k: each factor gets half of the relevance.

    R(a_k) = a_k b_k / (2 y) · R(y), and the same for b_k: half the gradient at both factors.
    """
    return scaled(a, 1 / 2), scaled(b, 1 / 2)


def gate_held(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """CP-LRP's rule for a gated product y = gate ⊙ up: the gate is a constant, up gets all of R(y).

    R(up) = gate · up / y · R(y) = R(y).
    """
    return held(gate), up


def gradient_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """No rule: both factors get their plain gradient, and y's relevance counts twice."""
    return a, b


# --- attention: O = A·V with A = softmax(Z), Z = s·Q·Kᵀ ------------------------------------------


def attnlrp_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """AttnLRP: both products halved, the softmax by its own Jacobian.

    O_jp = Σ_i A_ji V_ip (bilinear rule, halved):
        R(V_ip) = Σ_j A_ji V_ip / (2 O_jp) · R(O_jp),
        R(A_ji) = Σ_p A_ji V_ip / (2 O_jp) · R(O_jp);
    A = softmax(Z) (Eq. 5, a Taylor expansion whose bias is dropped):
        R(Z_ji) = Z_ji · (R(A_ji) − A_ji Σ_k R(A_jk)),
    which is Z ⊙ g(Z) with the softmax's own Jacobian; Z = s·Q·Kᵀ (halved again):
        R(Q_jd) = Σ_i s Q_jd K_id / (2 Z_ji) · R(Z_ji), and the same for K.
    Together: 1/2 of the plain gradient at V, 1/2 · 1/2 of it at Q and at K.
    """
    return scaled(query, 1 / 4), scaled(key, 1 / 4), scaled(value, 1 / 2)


def cp_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CP-LRP: A is a constant, so that O = A·V is linear in V, and V gets all of the relevance.

    R(V_ip) = Σ_j A_ji V_ip / O_jp · R(O_jp),   R(Q) = R(K) = 0.
    """
    return held(query), held(key), value


def half_value_attention(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """AttnLRP with its softmax closed: V keeps its half, and what A would get is lost.

    Not a method, but a control: it differs from AttnLRP in the softmax alone, and from CP-LRP in
    the share of the value alone.
    """
    return held(query), held(key), scaled(value, 1 / 2)


def whole_value_attention(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """CP-LRP with AttnLRP's softmax opened: V gets all, and Q and K a quarter of their gradient.

    The other control beside `half_value_attention`.
    """
    return scaled(query, 1 / 4), scaled(key, 1 / 4), value


def gradient_attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """No rule: the plain gradient through both products and the softmax."""
    return query, key, value


# --- activations ----------------------------------------------------------------------------------


class _Identity(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        y = function(x)
        ctx.save_for_backward((y / x).nan_to_num_(nan=0.0))
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return gradient * ratio, None


def identity_rule(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The identity rule for an elementwise y = f(x) with f(0) = 0: R(x) = R(y).

    So g(x) = y / x · g(y), and g(x) = 0 where x = 0.
    """
    return _Identity.apply(x, function)


# --- normalisation --------------------------------------------------------------------------------


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        y, _, inverse_std = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(weight, inverse_std)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight, inverse_std = ctx.saved_tensors
        gradient = gradient * weight
        gradient = gradient - gradient.mean(-1, keepdim=True)
        return gradient * inverse_std.to(gradient.dtype), None, None, None


def layer_norm_held_std(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm y = w ⊙ (x − mean x) / σ + b, with σ held constant.

    What is left is linear in x, with bias b: the ε-rule of Eq. 1 applies, and
    g(x) = (w ⊙ g(y) − mean(w ⊙ g(y))) / σ.
    """
    return _LayerNorm.apply(x, weight, bias, eps)


def rms_norm_held_rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm y = w ⊙ x / ρ with ρ = √(mean x² + eps) held constant: g(x) = w ⊙ g(y) / ρ.

    Computed in float32 at least, as in the models that use it.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse_rms = torch.rsqrt(wide.detach().pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * inverse_rms).to(x.dtype)
