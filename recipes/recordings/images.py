"""More of chapter 2's networks: the ε-rule at ε > 0, readings of IG, and curves of images.

`python -m recipes.recordings.images --dataset FOLDER --networks DIR --out results/mnist` measures
every setting for training seeds 0, 1, … and writes the recordings `epsilon`, `ig` and `curves`.
Networks are read from DIR/SEED, where `save_networks` puts them, and trained into it where they are
missing; the networks of seed 0 that `recipes.recordings.mnist` keeps fit there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import lrputils.linear_attention as la
from lrputils.data.images import ImageData, load_images
from lrputils.runs import results

EPSILONS = (1e-9, 1e-6, 1e-4, 1e-2)


@la.one_thread()
def attnlrp_with_epsilon(
    network: la.LinearAttention, images: Tensor, factorization: str, epsilon: float
) -> Tensor:
    """Return `attnlrp` at the pixels, (batch, tokens), with ε > 0 in every rule that divides.

    A rule that divides relevance by z + ε sign z instead of z lets |z| / (|z| + ε) of the gradient
    at z pass: Eq. 1 of You et al. at the output of each linear layer, at the sum of embedding and
    position and at the mean over tokens; Eqs. 3 and 4, with 2z for z, at the two products.
    """
    la.check_choice("factorization", factorization, (la.LEFT, la.RIGHT))
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
    if factorization == la.LEFT:
        attended = product(product(query, key.mT), value)
    else:
        attended = product(query, product(key.mT, value))
    flattened = network.setting.pooling == "flattened"
    pooled = attended.flatten(1) if flattened else linear(attended.mean(1))
    logits = linear(network.output(pooled))
    (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), pixels)
    return pixels.detach() * gradient


@la.one_thread()
@torch.no_grad()
def removal_curves(
    network: la.LinearAttention, images: Tensor, scores: Tensor, *, removal: str = "zero"
) -> Tensor:
    """Return the predicted class's logit after 0, 1, 2, … pixels are gone, (batch, tokens + 1).

    The pixels with the highest `scores` (batch, tokens) go first, as for MoRF; −`scores` gives
    LeRF. `removal` is "zero" or "black", see `leave_one_out`. No forward pass is run: M and G each
    are a running sum over the pixels that went.
    """
    la.check_choice("removal", removal, la.REMOVALS[:2])
    curves = []
    for part, order in zip(
        images.split(8), scores.argsort(dim=1, descending=True, stable=True).split(8), strict=True
    ):
        pixels, projected, rows, written, read = la.reads_and_writes(network, part)
        removed = network.project(la.emptied(network, pixels, removal))

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
        both = {"any": la.compared(maps, {la.GRAPHS: la.PAIRS[la.GRAPHS]} | itself)}
        for removal in _removals(network):
            loo = {"LOO": la.leave_one_out(network, images, removal=removal)}
            both[removal] = la.compared(maps | loo, {f"{g} vs LOO": (g, "LOO") for g in zero})
        for removal, found in both.items():
            means = found.groupby("pair", sort=False)[["r", "r_normalised"]].mean().reset_index()
            rows.append(means.assign(epsilon=epsilon, removal=removal))
    return pd.concat(rows, ignore_index=True)


def measure_ig(network: la.LinearAttention, images: Tensor, *, nodes: int = 2) -> pd.DataFrame:
    """Return how readings of Integrated Gradients agree with LOO, means over images.

    Returns:
        a row a `baseline` (zero, black, white), `removal` and `pair`: "IG vs LOO", and "mean
        gradient vs LOO", of the gradient's mean along IG's path without the factor x − x′; `r` and
        `r_normalised`. Both are exact with two nodes.
    """
    pixels = network.scaled(images)
    target = network(images).argmax(1, keepdim=True)
    loo = {r: la.leave_one_out(network, images, removal=r) for r in _removals(network)}
    grey = {"black": torch.zeros_like(images), "white": torch.ones_like(images)}
    rows = []
    for baseline in ("zero", *grey):
        start = network.scaled(grey[baseline]) if baseline in grey else torch.zeros_like(pixels)
        mean = torch.zeros_like(pixels)
        for node, weight in zip(*np.polynomial.legendre.leggauss(nodes), strict=True):
            point = (start + (node + 1) / 2 * (pixels - start)).requires_grad_()
            logit = network.from_pixels(point).gather(1, target).sum()
            mean += weight / 2 * torch.autograd.grad(logit, point)[0]
        maps = {"IG": mean * (pixels - start), "mean gradient": mean}
        for removal, scores in loo.items():
            found = la.compared(maps | {"LOO": scores}, {f"{m} vs LOO": (m, "LOO") for m in maps})
            means = found.groupby("pair", sort=False)[["r", "r_normalised"]].mean().reset_index()
            rows.append(means.assign(baseline=baseline, removal=removal))
    return pd.concat(rows, ignore_index=True)


def measure_curves(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return one network's mean logits along the curves of each map.

    Returns:
        a row an image (`id`), `removal` and `method` (LOO, IG, AttnLRP through both graphs):
        `morf` and `lerf`, the mean logit of the predicted class as pixels go, the most or the least
        relevant first, the whole and the empty image included. LOO's map is of the same removal.
    """
    rows = []
    for removal in _removals(network):
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


def _removals(network: la.LinearAttention) -> list[str]:
    """The removals that leave a pixel behind, "black" where it is not 0."""
    return list(dict.fromkeys(la.distinct(network.setting.scaling, r) for r in ("zero", "black")))


def networks(
    folder: Path, data: ImageData, seeds: int
) -> Iterator[tuple[la.Setting, int, la.LinearAttention]]:
    """Yield each setting, seed and network of a folder; train into it what it lacks."""
    for setting, seed in product(la.SETTINGS, range(seeds)):
        if not (folder / str(seed) / f"{setting.name}.safetensors").exists():
            la.save_networks([la.train(data, setting, seed)], folder / str(seed))
        stored = la.load_shipped(setting, 0, folder / str(seed), tokens=data.side**2)
        yield setting, seed, stored


MEASURES = {"epsilon": measure_epsilon, "ig": measure_ig, "curves": measure_curves}


def record(dataset: str, folder: Path, out: Path, *, seeds: int = 3, images: int = 100) -> None:
    """Measure every network and write the recordings into `out`."""
    data = load_images(dataset)
    pictures = torch.from_numpy(data.test_images[:images])
    kept, seconds = {name: [] for name in MEASURES}, dict.fromkeys(MEASURES, 0.0)
    for setting, seed, network in networks(folder, data, seeds):
        for name, measure in MEASURES.items():
            start = time.monotonic()
            kept[name].append(measure(network, pictures).assign(setting=setting.name, seed=seed))
            seconds[name] += time.monotonic() - start
    for name, parts in kept.items():
        facts = results.provenance(
            command="python -m recipes.recordings.images --dataset FOLDER --networks DIR "
            f"--seeds {seeds} --images {images} --out results/mnist",
            parameters={
                "settings": [s.name for s in la.SETTINGS],
                "seeds": seeds,
                "images": images,
            },
            seconds=seconds[name],
            data={"name": data.name, "split": data.note, "identity": data.identity},
        )
        results.write(out / name, _small(pd.concat(parts, ignore_index=True)), facts)


def _small(rows: pd.DataFrame) -> pd.DataFrame:
    names = [name for name in ("setting", "removal", "baseline", "pair", "method") if name in rows]
    floats = [name for name in ("r", "r_normalised", "morf", "lerf") if name in rows]
    rows[floats] = rows[floats].round(4 if "r" in rows else 3)
    whole = {name: "int16" for name in ("seed", "id") if name in rows}
    return rows.astype(dict.fromkeys(names, "category") | dict.fromkeys(floats, "float32") | whole)


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", required=True, help="as `load_images` takes it")
    parser.add_argument("--networks", type=Path, required=True, help="folder of trained networks")
    parser.add_argument("--seeds", type=int, default=3, help="networks a setting (%(default)s)")
    parser.add_argument("--images", type=int, default=100, help="images (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="results/mnist")
    chosen = parser.parse_args(arguments)
    how = {"seeds": chosen.seeds, "images": chosen.images}
    record(chosen.dataset, chosen.networks, chosen.out, **how)


if __name__ == "__main__":
    main()
