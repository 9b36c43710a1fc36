"""Chapter 2's experiment as recorded runs: many networks, a shard each.

`python -m recipes.recordings.mnist KIND --networks DIR --out results/mnist/RUN` trains, measures
and writes; what was killed goes on by the same command. What the rows mean is in
`recipes.recordings.images`. A network is read from DIR/SEED, and trained into it where it is
missing: weights in half precision, so that rows can be measured again on any processor. Those of
seed 0 lie beside the committed rows; training again gives other networks of the same kind wherever
float32 rounds otherwise.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import lrputils.linear_attention as la
from lrputils.data.images import ImageData, load_images
from lrputils.runs import results
from lrputils.runs.options import run_alone
from lrputils.runs.shards import Shard, in_shards
from recipes.recordings import images as measures

KINDS = {
    "linear-attention": la.measured,
    "epsilon": measures.measure_epsilon,
    "ig": measures.measure_ig,
    "curves": measures.measure_curves,
}
_CATEGORIES = ["setting", "removal", "baseline", "pair", "method"]
_SMALL = ["seed", "id", "label", "target"]


def record_mnist(
    kind: str,
    dataset: str = "mnist",
    *,
    networks: Path,
    settings: tuple[str, ...] = tuple(setting.name for setting in la.SETTINGS),
    seeds: int = 3,
    images: int = 100,
    epochs: int | None = None,
    out: Path,
    quiet: bool = False,
    command: str = "",
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
        ValueError: no seeds or images, no such kind or setting, `out` holds the shards of a run
            on other data, or another process records into it.
        FileExistsError: `out` holds a finished run.
    """
    la.check_choice("kind", kind, KINDS)
    if min(seeds, images, len(settings), epochs or 1) < 1:
        raise ValueError(f"seeds={seeds}, images={images}, {len(settings)} settings: none may be 0")
    chosen = [la.Setting(*name.split("-")) for name in settings]
    if (out / results.PROVENANCE).exists():
        raise FileExistsError(f"{out} holds a finished run: remove it, or name another folder")
    data = load_images(dataset)
    decided = {"kind": kind, "seeds": seeds, "images": images}
    plan = {"data": data.name, "identity": data.identity, "epochs": epochs} | decided
    taken = {setting.name: epochs or la.epochs_for(data, setting) for setting in chosen}

    def measure(setting: la.Setting, seed: int) -> pd.DataFrame:
        network = trained(networks / str(seed), data, setting, seed, epochs=epochs)
        rows = KINDS[kind](network, torch.from_numpy(data.test_images[:images]))
        rows = rows.assign(setting=setting.name, seed=seed)
        if kind == "linear-attention":
            test, labels = map(torch.from_numpy, (data.test_images, data.test_labels))
            right = la.accuracy(network, test, labels)
            rows = rows.assign(label=data.test_labels[rows["id"]], accuracy=right)
            rows = rows.drop(columns="r_normalised")  # it is r, or −r where flipped
        return rows

    def cut(work: Path) -> dict[str, Shard]:
        # Seeds outermost: every setting is there, if with fewer seeds, wherever a run is ended.
        return {
            f"{setting.name}.{seed}": Shard(partial(measure, setting, seed))
            for seed in range(seeds)
            for setting in chosen
        }

    def finish(paths: list[Path], seconds: float) -> tuple[pd.DataFrame, dict[str, Any]]:
        return _joined([*map(pd.read_parquet, paths)]), results.provenance(
            command=command,
            parameters=decided | {"settings": list(taken), "epochs": taken},
            seconds=seconds,
            data={"name": data.name, "split": data.note, "identity": data.identity},
        )

    return in_shards(out, plan, cut, finish, unit="networks", quiet=quiet)


def trained(
    folder: Path, data: ImageData, setting: la.Setting, seed: int, *, epochs: int | None = None
) -> la.LinearAttention:
    """Return the network that lies in `folder`; train it and put it there if there is none."""
    if not (folder / f"{setting.name}.safetensors").exists():
        la.save_networks([la.train(data, setting, seed, epochs=epochs)], folder)
    return la.load_shipped(setting, 0, folder, tokens=data.side**2)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Put shards together, in the fewest bytes: categories, small integers, rounded floats."""
    rows = pd.concat(parts, ignore_index=True)
    floats = rows.columns.intersection(["r", "r_normalised", "pooled", "accuracy", "morf", "lerf"])
    types = dict.fromkeys(_CATEGORIES, "category") | dict.fromkeys(floats, "float32")
    types |= dict.fromkeys(_SMALL, "int16")
    rows[floats] = rows[floats].round(4)
    return rows.astype({name: kind for name, kind in types.items() if name in rows})


if __name__ == "__main__":
    print(run_alone(record_mnist, prog="python -m recipes.recordings.mnist"))
