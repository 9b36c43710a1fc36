"""Chapter 2's experiment as a recorded run: many networks, a shard each, rows and networks kept.

`python -m recipes.recordings.mnist --dataset mnist --out DIR` trains, measures and writes; what was
killed goes on by the same command. What the rows mean is in `lrputils.linear_attention`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lrputils.data.images import ImageData, load_images
from lrputils.linear_attention import (
    SHIPPED,
    Setting,
    accuracy,
    epochs_for,
    measured,
    rounded,
    save_networks,
    train,
)
from lrputils.runs import results
from lrputils.runs.options import run_alone
from lrputils.runs.shards import Shard, in_shards

NETWORKS = "networks"  # folder beside the rows: the networks of training seed 0
_SMALL = {"seed": "int16", "id": "int16", "label": "int16", "target": "int16"}


def record_mnist(
    dataset: str = "mnist",
    *,
    settings: tuple[str, ...] = tuple(setting.name for setting in SHIPPED),
    seeds: int = 10,
    images: int = 200,
    epochs: int | None = None,
    out: Path,
    quiet: bool = False,
    command: str = "",
) -> Path:
    """Train networks on images, measure their maps, and write a recorded run.

    Every network is measured in float64 after its weights went through half precision. Those of
    seed 0 are kept in `out/networks`, so that their rows can be recomputed on any processor;
    training again gives other networks of the same kind wherever float32 rounds otherwise. A killed
    run loses at most the network it was at.

    The rows are those of `measured`, with the image's `label` and the network's test `accuracy`;
    `r_normalised` is left out, since it is `r`, or −r where `flipped`.

    Args:
        dataset: as `load_images` takes it
        settings: as learned-mean-unit
        seeds: networks a setting
        images: test images explained a network, from the first
        epochs: of training (default: by the data and setting)
        out: results/mnist/RUN
        quiet: no progress

    Raises:
        ValueError: no seeds or images, a name that is no setting, `out` holds the shards of a run
            on other data, or another process records into it.
        FileExistsError: `out` holds a finished run.
    """
    if min(seeds, images, len(settings), epochs or 1) < 1:
        raise ValueError(f"seeds={seeds}, images={images}, {len(settings)} settings: none may be 0")
    chosen = [Setting.named(name) for name in settings]
    if (out / results.PROVENANCE).exists():
        raise FileExistsError(f"{out} holds a finished run: remove it, or name another folder")
    data = load_images(dataset)
    plan = {"data": data.name, "identity": data.identity, "images": images, "epochs": epochs}
    taken = {setting.name: epochs or epochs_for(data, setting) for setting in chosen}
    decided = {"settings": list(taken), "seeds": seeds, "images": images, "epochs": taken}

    def cut(work: Path) -> dict[str, Shard]:
        # Seeds outermost: every setting is there, if with fewer seeds, wherever a run is ended.
        return {
            f"{setting.name}.{seed}": Shard(
                partial(_network, work, data, setting, seed, images, epochs)
            )
            for seed in range(seeds)
            for setting in chosen
        }

    def finish(paths: list[Path], seconds: float) -> tuple[pd.DataFrame, dict[str, Any]]:
        kept = paths[0].parent / NETWORKS
        if kept.exists():
            kept.replace(out / NETWORKS)
        return _joined([*map(pd.read_parquet, paths)]), results.provenance(
            command=command,
            parameters=decided,
            seconds=seconds,
            data={"name": data.name, "split": data.note, "identity": data.identity},
        )

    return in_shards(out, plan, cut, finish, unit="networks", quiet=quiet)


def _network(
    work: Path, data: ImageData, setting: Setting, seed: int, images: int, epochs: int | None
) -> pd.DataFrame:
    """Train one network and measure its maps."""
    network = rounded(train(data, setting, seed, epochs=epochs))
    test, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    rows = measured([network], test[:images])
    if seed == 0:
        save_networks([network], work / NETWORKS)
    right = accuracy(network, test, labels)
    return rows.assign(seed=seed, label=data.test_labels[rows["id"]], accuracy=right)


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Put shards together, in the fewest bytes: categories, small integers, rounded floats."""
    rows = pd.concat(parts, ignore_index=True).drop(columns="r_normalised")
    order = ["setting", "removal", "pair", "seed", "id"]
    rows = rows.sort_values(order, kind="stable", ignore_index=True)
    floats = rows.select_dtypes("float").columns
    types = dict.fromkeys(order[:3], "category") | dict.fromkeys(floats, "float32") | _SMALL
    rows[floats] = rows[floats].round(4)
    return rows[order + [name for name in rows if name not in order]].astype(types)


if __name__ == "__main__":
    print(run_alone(record_mnist, prog="python -m recipes.recordings.mnist"))
