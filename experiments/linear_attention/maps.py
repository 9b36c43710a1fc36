"""Exact maps of the network's pixels: AttnLRP through each graph, LOO, Integrated Gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from experiments.linear_attention.network import (
    RIGHT,
    SHARES,
    LinearAttention,
    check_choice,
    one_thread,
)

REMOVALS = ("zero", "black", "delete")
BASELINES = ("zero", "black", "white")
READOUTS = ("pixel", "token")


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1)


@one_thread()
def attnlrp(
    network: LinearAttention, images: Tensor, factorization: str, *, readout: str = "pixel"
) -> Tensor:
    """Return AttnLRP's relevance (batch, tokens) of the predicted class's logit.

    Each matrix product halves relevance between its factors (AttnLRP's rule for bilinear maps);
    linear layers follow the ε-rule with ε → 0, which is gradient × input. So it is gradient × input
    with Q, K and V letting their `SHARES` of the gradient pass.

    Args:
        images: grey levels from 0 to 1, (batch, tokens)
        factorization: a name in `SHARES`
        readout: "pixel" stops at the scaled pixel, so that biases and position embeddings keep
            their share; "token" stops at the rows of Q, K and V and includes that share
    """
    check_choice("factorization", factorization, SHARES)
    check_choice("readout", readout, READOUTS)
    pixels = network.scaled(images).detach().requires_grad_()
    projected = network.project(pixels)
    query, key, value = (
        z.detach() + share * (z - z.detach())
        for z, share in zip(projected, SHARES[factorization], strict=True)
    )
    logit = network.classify(query @ (key.mT @ value)).max(1).values.sum()
    if readout == "pixel":
        return (pixels * torch.autograd.grad(logit, pixels)[0]).detach()
    return sum(map(_dot, projected, torch.autograd.grad(logit, projected))).detach()


@one_thread()
@torch.no_grad()
def leave_one_out(network: LinearAttention, images: Tensor, *, removal: str = "zero") -> Tensor:
    """Return, for every pixel, the predicted class's logit minus that logit without the pixel.

    `removal`: "zero" puts 0 into the network's input (after scaling), "black" the grey level 0
    (before scaling), "delete" takes the token out of queries, keys and values, and out of the mean
    where the network pools.

    No forward pass is run per pixel. The logit is ⟨M, G⟩ plus a bias, with M = KᵀV (what is
    written) and G = Σ_t q_t w_tᵀ (how it is read), both dim × dim; w_t is the output layer's row
    at token t. Removing a pixel changes M by k′v′ᵀ − kvᵀ and G by (q′ − q)wᵀ, matrices of rank two
    and one.
    """
    check_choice("removal", removal, REMOVALS)
    pixels = network.scaled(images)
    query, key, value = network.project(pixels)
    written = key.mT @ value
    rows = network.output_rows(network.classify(query @ written).argmax(1))
    read = query.mT @ rows
    if removal == "delete":
        new_query, new_key, new_value = map(torch.zeros_like, (query, key, value))
    else:
        new_query, new_key, new_value = network.project(emptied(network, pixels, removal))
    change = query - new_query
    # ⟨M, G⟩ − ⟨M + D, G + E⟩ = −⟨M, E⟩ − ⟨D, G⟩ − ⟨D, E⟩
    through_read = _dot(change @ written, rows)
    through_written = _dot(key @ read, value) - _dot(new_key @ read, new_value)
    both = _dot(new_key, change) * _dot(new_value, rows) - _dot(key, change) * _dot(value, rows)
    effect = through_read + through_written + both
    if removal == "delete" and network.setting.pooling == "mean":
        total = (written * read).sum((1, 2))[:, None]
        effect = total - (total - effect) * network.tokens / (network.tokens - 1)
    return effect


@one_thread()
def mean_gradient(
    network: LinearAttention,
    images: Tensor,
    *,
    baseline: str = "zero",
    factorization: str = RIGHT,
) -> tuple[Tensor, Tensor]:
    """Return the mean gradient on the way from the baseline, and the way, (batch, tokens) each.

    Of the predicted class's logit. The baseline "zero" is the network's input of zeros, "black" the
    image of grey level 0, "white" that of 1. The logit is a cubic of the path's position, so its
    derivative is a parabola, and two Gauss-Legendre nodes integrate it exactly.
    """
    check_choice("baseline", baseline, BASELINES)
    pixels = network.scaled(images).detach()
    way = pixels - emptied(network, pixels, baseline)
    target = network.from_pixels(pixels).argmax(1, keepdim=True)
    gradient = torch.zeros_like(pixels)
    for node, weight in zip(*np.polynomial.legendre.leggauss(2), strict=True):
        point = (pixels - (1 - node) / 2 * way).requires_grad_()
        logit = network.from_pixels(point, factorization).gather(1, target).sum()
        gradient += weight / 2 * torch.autograd.grad(logit, point)[0]
    return gradient, way


def integrated_gradients(network: LinearAttention, images: Tensor, **options) -> Tensor:
    """Return Integrated Gradients (batch, tokens): `mean_gradient`, with its options, × the way."""
    gradient, way = mean_gradient(network, images, **options)
    return gradient * way


def explain(
    network: LinearAttention,
    images: Tensor,
    *,
    removal: str = "zero",
    baseline: str = "zero",
) -> dict[str, Tensor]:
    """Return the chapter's maps, each (batch, tokens): LOO, IG, and LRP through each graph."""
    maps = {
        "LOO": leave_one_out(network, images, removal=removal),
        "IG": integrated_gradients(network, images, baseline=baseline),
    }
    return maps | {graph: attnlrp(network, images, graph) for graph in SHARES}


def emptied(network: LinearAttention, pixels: Tensor, how: str) -> Tensor:
    """Return the scaled image in which every pixel is "zero", "black" or "white"."""
    if how == "zero":
        return torch.zeros_like(pixels)
    return network.scaled(torch.full_like(pixels, 1.0 if how == "white" else 0.0))
