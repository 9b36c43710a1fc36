"""Chapter 2's experiment as recorded runs: many networks, one after the other.

`python -m experiments.recordings.mnist KIND --networks DIR --out results/mnist/RUN` trains,
measures and writes; after a kill the same command finds the networks that are there. What the rows
mean is said where they are measured. A network is read from DIR/SEED, and trained into it where it
is missing: weights in half precision, so that rows can be measured again on any processor. Those of
seed 0 lie beside the committed rows; training again gives other networks of the same kind wherever
float32 rounds otherwise.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

import experiments.linear_attention as la
from experiments.command import main
from experiments.images import ImageData, load_images
from experiments.recordings.__main__ import rounded
from experiments.recordings.epsilon import EPSILONS, damped
from experiments.recordings.provenance import provenance, write
from lrputils.mistakes import one_of
from lrputils.progress import bar
from lrputils.propagation.rules import scaled
from lrputils.runs import results
from lrputils.runs.options import Names, Words


def _means(maps: dict[str, Tensor], pairs: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """A row a pair: its mean `r` and `r_normalised` over images."""
    by_pair = la.correlations(maps, pairs).groupby("pair", sort=False)
    return by_pair[["r", "r_normalised"]].mean().reset_index()


@la.one_thread()
def _attnlrp_with_epsilon(
    network: la.LinearAttention, images: Tensor, factorization: str, epsilon: float
) -> Tensor:
    """Return `attnlrp` at the pixels, (batch, tokens), with ε > 0 in every rule that divides.

    A rule that divides relevance by z + ε sign z instead of z lets |z| / (|z| + ε) of the gradient
    at z pass: Eq. 1 of You et al. at the output of each linear layer, at the sum of embedding and
    position and at the mean over tokens; Eqs. 3 and 4, with 2z for z, at the two products.
    """

    def _product(left: Tensor, right: Tensor) -> Tensor:
        # Its divisor is 2·z + ε sign z: half, and as if ε were half.
        return scaled(damped(left @ right, epsilon / 2), 1 / 2)

    pixels = network.scaled(images).detach().requires_grad_()
    tokens = pixels[..., None]
    if network.setting.embedding == "learned":
        tokens = damped(damped(network.embedding(tokens), epsilon) + network.position, epsilon)
    layers = network.query, network.key, network.value
    query, key, value = (damped(layer(tokens), epsilon) for layer in layers)
    if factorization == la.LEFT:
        attended = _product(_product(query, key.mT), value)
    else:
        attended = _product(query, _product(key.mT, value))
    flattened = network.setting.pooling == "flattened"
    pooled = attended.flatten(1) if flattened else damped(attended.mean(1), epsilon)
    logits = damped(network.output(pooled), epsilon)
    (gradient,) = torch.autograd.grad(logits.max(1).values.sum(), pixels)
    return pixels.detach() * gradient


def _measure_epsilon(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
    """Return how one network's maps agree at each ε, means over images.

    Returns:
        a row an `epsilon`, `removal` and `pair`: of both graphs with each other and with LOO, and
        of each graph with its own map at ε = 0 ("… vs ε = 0"); `r` and `r_normalised`, after
        dividing each map by its sum. "any" is the removal of a pair without LOO.
    """
    zero = {graph: la.attnlrp(network, images, graph) for graph in (la.LEFT, la.RIGHT)}
    rows = []
    for epsilon in EPSILONS:
        maps = {
            graph: _attnlrp_with_epsilon(network, images, graph, epsilon) if epsilon else scores
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


def _measure_ig(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
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
def _removal_curves(
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


def _measure_curves(network: la.LinearAttention, images: Tensor) -> pd.DataFrame:
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
                order: _removal_curves(network, images, sign * maps[method], removal=removal)
                for order, sign in (("morf", 1), ("lerf", -1))
            }
            means = {order: curve.mean(1).numpy() for order, curve in means.items()}
            own = {"id": range(len(images)), "removal": removal, "method": method}
            rows.append(pd.DataFrame(own | means))
    return pd.concat(rows, ignore_index=True)


_MEASURED = {
    "linear-attention": la.under_every_removal,
    "epsilon": _measure_epsilon,
    "ig": _measure_ig,
    "curves": _measure_curves,
}


def record_mnist(
    kind: str,
    /,
    *,
    dataset: str = "mnist",
    networks: Path,
    settings: Names = tuple(setting.name for setting in la.SETTINGS),
    seeds: int = 3,
    images: int = 100,
    epochs: int | None = None,
    out: Path,
    quiet: bool = False,
    command: Words = "",
) -> Path:
    """Train networks on images, measure their maps, and write a recorded run.

    Args:
        kind: linear-attention, epsilon, ig or curves
        dataset: as `load_images` takes it
        networks: folder of trained networks
        settings: as learned-mean-unit
        seeds: networks a setting
        images: test images explained a network, from the first
        epochs: of training (default: by the data and setting)
        out: results/mnist/RUN
        quiet: no progress

    Raises:
        ValueError: no seeds or images, or no such kind or setting.
        FileExistsError: `out` holds a recording.
    """
    one_of("kind", kind, _MEASURED)
    if min(seeds, images, len(settings), epochs or 1) < 1:
        raise ValueError(f"seeds={seeds}, images={images}, {len(settings)} settings: none may be 0")
    chosen = [la.Setting(*name.split("-")) for name in settings]
    if (out / results.PROVENANCE).exists():
        raise FileExistsError(f"{out} holds a recording: remove it, or name another folder")
    data = load_images(dataset)
    decided = {"kind": kind, "images": images}
    taken = {setting.name: epochs or la.epochs_for(data, setting) for setting in chosen}
    parts, began = [], time.monotonic()
    # Seeds outermost: every setting is there, if with fewer seeds, wherever a run is ended.
    wanted = [(setting, seed) for seed in range(seeds) for setting in chosen]
    for setting, seed in bar(not quiet, iterable=wanted, log=True, unit=" networks"):
        network = _trained(networks / str(seed), data, setting, seed, epochs=epochs)
        rows = _MEASURED[kind](network, torch.from_numpy(data.test_images[:images]))
        rows = rows.assign(setting=setting.name, seed=seed)
        if kind == "linear-attention":
            test, labels = map(torch.from_numpy, (data.test_images, data.test_labels))
            right = la.accuracy(network, test, labels)
            rows = rows.assign(label=data.test_labels[rows["id"]], accuracy=right)
            rows = rows.drop(columns="r_normalised")  # it is r, or −r where flipped
        parts.append(rows)
    facts = provenance(
        command=command,
        parameters=decided | {"seeds": seeds, "settings": list(taken), "epochs": taken},
        seconds=time.monotonic() - began,
        data={"name": data.name, "split": data.note, "identity": data.identity},
    )
    write(out, rounded(pd.concat(parts)), facts)
    return out


def _trained(
    folder: Path, data: ImageData, setting: la.Setting, seed: int, *, epochs: int | None = None
) -> la.LinearAttention:
    """Return the network that lies in `folder`; train it and put it there if there is none."""
    if not (folder / f"{setting.name}.safetensors").exists():
        la.save_networks([la.train(data, setting, seed, epochs=epochs)], folder)
    return la.load_shipped(setting, 0, folder, tokens=data.side**2)


if __name__ == "__main__":
    main(record_mnist, "python -m experiments.recordings.mnist")
