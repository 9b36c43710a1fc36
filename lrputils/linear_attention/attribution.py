"""Attributions of the linear attention network's logit to its pixels, all of them exact.

The logit is ⟨M, G⟩ plus a bias, with M = KᵀV (what is written) and G = Σ_t q_t w_tᵀ (how it is
read), both dim × dim; w_t is the output layer's row at token t. Every attribution here is a few
products with M and G: the work of one forward pass, for all pixels together.
"""

from __future__ import annotations

from operator import mul

import numpy as np
import torch
from torch import Tensor

from lrputils.linear_attention.model import (
    LEFT,
    RIGHT,
    TERNARY,
    LinearAttention,
    Projected,
    check_choice,
    multiplied,
    one_thread,
    path_shares,
)

REMOVALS = ("zero", "black", "delete")
BASELINES = ("zero", "black", "white")
READOUTS = ("pixel", "token")


@torch.no_grad()
def _logit(
    network: LinearAttention, images: Tensor
) -> tuple[Tensor, Projected, Tensor, Tensor, Tensor]:
    """Return scaled pixels; Q, K and V; w, M and G of the predicted class's logit."""
    if not len(images):
        raise ValueError("There are no images to explain")
    pixels = network.scaled(images)
    query, key, value = projected = network.project(pixels)
    written = key.mT @ value
    rows = network.output_rows(network.classify(query @ written).argmax(1))
    return pixels, projected, rows, written, query.mT @ rows


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1)


@one_thread()
@torch.no_grad()
def paths(network: LinearAttention, images: Tensor, *, readout: str = "pixel") -> Projected:
    """Return gradient × input of the predicted class's logit by Q, K and V, (batch, tokens) each.

    `images` are grey levels from 0 to 1; a network in float64 gives exact maps. The readout "pixel"
    stops at the scaled pixel, so that biases and position embeddings keep their share; "token"
    stops at the rows of Q, K and V and includes that share.
    """
    check_choice("readout", readout, READOUTS)
    pixels, projected, rows, written, read = _logit(network, images)
    gradients = (rows @ written.mT, projected.value @ read.mT, projected.key @ read)
    if readout == "token":
        return Projected(*map(_dot, projected, gradients))
    towards = network.directions()
    return Projected(*(pixels * (g @ a) for a, g in zip(towards, gradients, strict=True)))


def attnlrp(
    network: LinearAttention, images: Tensor, factorization: str, *, readout: str = "pixel"
) -> Tensor:
    """Return AttnLRP's relevance (batch, tokens) of the predicted class's logit.

    Each matrix product halves relevance between its factors (AttnLRP's rule for bilinear maps);
    linear layers follow the ε-rule with ε → 0, which is gradient × input. Q, K and V therefore
    pass on 2 to the minus their depth in the factorization: 1/4, 1/4, 1/2 in (QKᵀ)V and
    1/2, 1/4, 1/4 in Q(KᵀV); "3-ary" gives each a third.
    """
    return _weighted(paths(network, images, readout=readout), factorization)


@one_thread()
def attnlrp_with_epsilon(
    network: LinearAttention, images: Tensor, factorization: str, epsilon: float
) -> Tensor:
    """Return `attnlrp` at the pixels, (batch, tokens), with ε > 0 in every rule that divides.

    A rule that divides relevance by z + ε sign z instead of z lets |z| / (|z| + ε) of the gradient
    at z pass: Eq. 1 of You et al. at the output of each linear layer, at the sum of embedding and
    position and at the mean over tokens; Eqs. 3 and 4, with 2z for z, at the two products.
    """
    check_choice("factorization", factorization, (LEFT, RIGHT))
    if epsilon <= 0:
        raise ValueError(f"epsilon={epsilon} is not positive; at 0 it is `attnlrp`")

    def passing(z: Tensor, share: Tensor) -> Tensor:
        return z.detach() + (z - z.detach()) * share

    def linear(z: Tensor) -> Tensor:
        size = z.detach().abs()
        return passing(z, size / (size + epsilon))

    def product(left: Tensor, right: Tensor) -> Tensor:
        size = (z := left @ right).detach().abs()
        return passing(z, size / (2 * size + epsilon))

    pixels = network.scaled(images).detach().requires_grad_()
    tokens = pixels[..., None]
    if network.setting.embedding == "learned":
        tokens = linear(linear(network.embedding(tokens)) + network.position)
    layers = network.query, network.key, network.value
    query, key, value = (linear(layer(tokens)) for layer in layers)
    if factorization == LEFT:
        attended = product(product(query, key.mT), value)
    else:
        attended = product(query, product(key.mT, value))
    flattened = network.setting.pooling == "flattened"
    pooled = attended.flatten(1) if flattened else linear(attended.mean(1))
    logits = linear(network.output(pooled))
    (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), pixels)
    return pixels.detach() * gradient


def _weighted(by: Projected, factorization: str) -> Tensor:
    return sum(map(mul, path_shares(factorization).values(), by))


@one_thread()
@torch.no_grad()
def leave_one_out(network: LinearAttention, images: Tensor, *, removal: str = "zero") -> Tensor:
    """Return, for every pixel, the predicted class's logit minus that logit without the pixel.

    `removal`: "zero" puts 0 into the network's input (after scaling), "black" the grey level 0
    (before scaling), "delete" takes the token out of queries, keys and values, and out of the mean
    where the network pools.

    No forward pass is run per pixel: removing one changes `written` by k′v′ᵀ − kvᵀ and `read` by
    (q′ − q)wᵀ, matrices of rank two and one.
    """
    check_choice("removal", removal, REMOVALS)
    pixels, (query, key, value), rows, written, read = _logit(network, images)
    if removal == "delete":
        new_query, new_key, new_value = map(torch.zeros_like, (query, key, value))
    else:
        new_query, new_key, new_value = network.project(_emptied(network, pixels, removal))
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
@torch.no_grad()
def leave_one_out_by_passes(
    network: LinearAttention, images: Tensor, *, removal: str = "zero", factorization: str = RIGHT
) -> Tensor:
    """Return what `leave_one_out` returns, by one forward pass per pixel in the order asked for.

    Batches of 8 images, as in the paper. "delete" cuts the token out of Q, K and V.
    """
    check_choice("removal", removal, REMOVALS)
    maps = []
    for part in images.split(8):
        pixels = network.scaled(part)
        logits = network.from_pixels(pixels, factorization)
        without = [
            _logits_without(network, pixels, token, removal, factorization)
            for token in range(network.tokens)
        ]
        target = logits.argmax(1)[:, None, None].expand(-1, network.tokens, 1)
        maps.append((logits[:, None] - torch.stack(without, 1)).gather(2, target)[..., 0])
    return torch.cat(maps)


@one_thread()
@torch.no_grad()
def removal_curves(
    network: LinearAttention, images: Tensor, scores: Tensor, *, removal: str = "zero"
) -> Tensor:
    """Return the predicted class's logit after 0, 1, 2, … pixels are gone, (batch, tokens + 1).

    The pixels with the highest `scores` (batch, tokens) go first, as for MoRF; −`scores` gives
    LeRF. `removal` is "zero" or "black", see `leave_one_out`. No forward pass is run: M and G each
    are a running sum over the pixels that went.
    """
    check_choice("removal", removal, REMOVALS[:2])
    curves = []
    for part, order in zip(
        images.split(8), scores.argsort(dim=1, descending=True, stable=True).split(8), strict=True
    ):
        pixels, projected, rows, written, read = _logit(network, part)
        removed = network.project(_emptied(network, pixels, removal))

        def going(tokens: Tensor, order: Tensor = order) -> Tensor:
            return tokens.gather(1, order[..., None].expand_as(tokens))

        query, key, value = map(going, projected)
        new_query, new_key, new_value = map(going, removed)
        written_less = _outer(key, value) - _outer(new_key, new_value)
        read_less = _outer(query - new_query, going(rows.expand_as(query)))
        steps = [
            torch.cat([whole[:, None], whole[:, None] - less.cumsum(1)], 1)
            for whole, less in ((written, written_less), (read, read_less))
        ]
        target = network.from_pixels(pixels).argmax(1)
        curves.append((steps[0] * steps[1]).sum((2, 3)) + network.output.bias[target][:, None])
    return torch.cat(curves)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left[..., :, None] * right[..., None, :]


@one_thread()
def integrated_gradients(
    network: LinearAttention,
    images: Tensor,
    *,
    baseline: str = "zero",
    nodes: int = 2,
    factorization: str = RIGHT,
) -> Tensor:
    """Return Integrated Gradients (batch, tokens) of the predicted class's logit.

    The baseline "zero" is the network's input of zeros, "black" the image of grey level 0, "white"
    that of 1. The logit is a cubic of the path's position, so its derivative is a parabola, and two
    Gauss-Legendre nodes integrate it exactly.
    """
    check_choice("baseline", baseline, BASELINES)
    if nodes < 1:
        raise ValueError(f"nodes={nodes} is not a positive number")
    pixels = network.scaled(images).detach()
    start = _emptied(network, pixels, baseline)
    with torch.no_grad():
        target = network.from_pixels(pixels).argmax(1, keepdim=True)
    gradient = torch.zeros_like(pixels)
    for node, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
        point = (start + (node + 1) / 2 * (pixels - start)).requires_grad_()
        logit = network.from_pixels(point, factorization).gather(1, target).sum()
        gradient += weight / 2 * torch.autograd.grad(logit, point)[0]
    return gradient * (pixels - start)


def explain(
    network: LinearAttention, images: Tensor, *, removal: str = "zero", **options
) -> dict[str, Tensor]:
    """Return the chapter's maps, each (batch, tokens): LOO, IG, and LRP through each graph.

    `options` are those of `propagated`.
    """
    maps = {"LOO": leave_one_out(network, images, removal=removal)}
    return maps | propagated(network, images, **options)


def propagated(
    network: LinearAttention, images: Tensor, *, baseline: str = "zero", readout: str = "pixel"
) -> dict[str, Tensor]:
    """Return the maps other than LOO: "IG", and LRP by the factorization's name."""
    by = paths(network, images, readout=readout)
    maps = {name: _weighted(by, name) for name in (LEFT, RIGHT, TERNARY)}
    return {"IG": integrated_gradients(network, images, baseline=baseline)} | maps


def _emptied(network: LinearAttention, pixels: Tensor, how: str) -> Tensor:
    """Return the scaled image in which every pixel is "zero", "black" or "white"."""
    if how == "zero":
        return torch.zeros_like(pixels)
    return network.scaled(torch.full_like(pixels, 1.0 if how == "white" else 0.0))


def _logits_without(
    network: LinearAttention, pixels: Tensor, token: int, removal: str, factorization: str
) -> Tensor:
    if removal != "delete":
        changed = pixels.clone()
        changed[:, token] = _emptied(network, pixels, removal)[:, token]
        return network.from_pixels(changed, factorization)
    kept = torch.arange(network.tokens) != token
    query, key, value = (rows[:, kept] for rows in network.project(pixels))
    attended = multiplied(query, key, value, factorization)
    if network.setting.pooling == "mean":
        return network.classify(attended)
    rows = network.output.weight.view(-1, network.tokens, network.dim)[:, kept]
    return attended.flatten(1) @ rows.flatten(1).T + network.output.bias
