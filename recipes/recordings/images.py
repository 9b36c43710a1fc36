"""What is measured of chapter 2's networks: pairs of maps, ε > 0, readings of IG, curves of images.

`recipes.recordings.mnist` trains the networks and records what these functions return.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

import lrputils.linear_attention as la

EPSILONS = (1e-9, 1e-6, 1e-4, 1e-2)


def _means(maps: dict[str, Tensor], pairs: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """A row a pair: its mean `r` and `r_normalised` over images."""
    by_pair = la.compared(maps, pairs).groupby("pair", sort=False)
    return by_pair[["r", "r_normalised"]].mean().reset_index()


@la.one_thread()
def attnlrp_with_epsilon(
    network: la.LinearAttention, images: Tensor, factorization: str, epsilon: float
) -> Tensor:
    """Return `attnlrp` at the pixels, (batch, tokens), with ε > 0 in every rule that divides.

    A rule that divides relevance by z + ε sign z instead of z lets |z| / (|z| + ε) of the gradient
    at z pass: Eq. 1 of You et al. at the output of each linear layer, at the sum of embedding and
    position and at the mean over tokens; Eqs. 3 and 4, with 2z for z, at the two products.
    """

    def damped(z: Tensor, factors: int = 1) -> Tensor:
        size = z.detach().abs()
        return z.detach() + (z - z.detach()) * size / (factors * size + epsilon)

    pixels = network.scaled(images).detach().requires_grad_()
    tokens = pixels[..., None]
    if network.setting.embedding == "learned":
        tokens = damped(damped(network.embedding(tokens)) + network.position)
    layers = network.query, network.key, network.value
    query, key, value = (damped(layer(tokens)) for layer in layers)
    if factorization == la.LEFT:
        attended = damped(damped(query @ key.mT, factors=2) @ value, factors=2)
    else:
        attended = damped(query @ damped(key.mT @ value, factors=2), factors=2)
    flattened = network.setting.pooling == "flattened"
    pooled = attended.flatten(1) if flattened else damped(attended.mean(1))
    logits = damped(network.output(pooled))
    (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), pixels)
    return pixels.detach() * gradient


def measure_epsilon(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return how one network's maps agree at each ε, means over images.

    Returns:
        a row an `epsilon`, `removal` and `pair`: of both graphs with each other and with LOO, and
        of each graph with its own map at ε = 0 ("… vs ε = 0"); `r` and `r_normalised`, after
        dividing each map by its sum. "any" is the removal of a pair without LOO.
    """
    zero = {graph: la.attnlrp(network, images, graph) for graph in (la.LEFT, la.RIGHT)}
    rows = []
    for epsilon in (0.0, *EPSILONS):
        maps = {
            graph: attnlrp_with_epsilon(network, images, graph, epsilon) if epsilon else scores
            for graph, scores in zero.items()
        }
        maps |= {f"{graph}, 0": scores for graph, scores in zero.items()}
        itself = {f"{graph} vs ε = 0": (graph, f"{graph}, 0") for graph in zero}
        both = {la.ANY: _means(maps, {la.GRAPHS: la.PAIRS[la.GRAPHS]} | itself)}
        for removal in la.distinct(network.setting, la.REMOVALS[:2]):
            loo = {"LOO": la.leave_one_out(network, images, removal=removal)}
            both[removal] = _means(maps | loo, {f"{g} vs LOO": (g, "LOO") for g in zero})
        rows += [means.assign(epsilon=epsilon, removal=removal) for removal, means in both.items()]
    return pd.concat(rows, ignore_index=True)


def measure_ig(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return how readings of Integrated Gradients agree with LOO, means over images.

    Returns:
        a row a `baseline` (zero, black, white), `removal` and `pair`: "IG vs LOO", and "mean
        gradient vs LOO", of the gradient's mean along IG's path without the factor x − x′; `r` and
        `r_normalised`.
    """
    rows = []
    for baseline in la.BASELINES:
        gradient, way = la.mean_gradient(network, images, baseline=baseline)
        maps = {"IG": gradient * way, "mean gradient": gradient}
        for removal in la.distinct(network.setting, la.REMOVALS[:2]):
            loo = {"LOO": la.leave_one_out(network, images, removal=removal)}
            means = _means(maps | loo, {f"{name} vs LOO": (name, "LOO") for name in maps})
            rows.append(means.assign(baseline=baseline, removal=removal))
    return pd.concat(rows, ignore_index=True)


@la.one_thread()
@torch.no_grad()
def removal_curves(
    network: la.LinearAttention, images: Tensor, scores: Tensor, *, removal: str = "zero"
) -> Tensor:
    """Return the predicted class's logit after 0, 1, 2, … pixels are gone, (batch, tokens + 1).

    The pixels with the highest `scores` (batch, tokens) go first, as for MoRF; −`scores` gives
    LeRF. `removal` is "zero" or "black", see `leave_one_out`.
    """
    pixels = network.scaled(images)
    absent = la.emptied(network, pixels, removal)
    target = network.from_pixels(pixels).argmax(1, keepdim=True)
    rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    steps = (torch.where(rank < gone, absent, pixels) for gone in range(network.tokens + 1))
    return torch.cat([network.from_pixels(left).gather(1, target) for left in steps], dim=1)


def measure_curves(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return one network's mean logits along the curves of each map.

    Returns:
        a row an image (`id`), `removal` and `method` (LOO, IG, AttnLRP through both graphs):
        `morf` and `lerf`, the mean logit of the predicted class as pixels go, the most or the least
        relevant first, the whole and the empty image included. LOO's map is of the same removal.
    """
    rows = []
    for removal in la.distinct(network.setting, la.REMOVALS[:2]):
        maps = la.explain(network, images, removal=removal)
        for method in ("LOO", "IG", la.LEFT, la.RIGHT):
            means = {
                order: removal_curves(network, images, sign * maps[method], removal=removal)
                for order, sign in (("morf", 1), ("lerf", -1))
            }
            means = {order: curve.mean(1).numpy() for order, curve in means.items()}
            own = {"id": range(len(images)), "removal": removal, "method": method}
            rows.append(pd.DataFrame(own | means))
    return pd.concat(rows, ignore_index=True)
