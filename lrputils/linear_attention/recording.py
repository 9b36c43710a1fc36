"""Chapter 2's experiment as a recorded run: many networks, a shard each, rows and networks kept.

It trains, measures and writes. What the rows mean is `agreement`'s affair, how a recorded run is
stored that of `lrputils.results`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch
from tqdm import tqdm

from lrputils import results
from lrputils.data.images import ImageData, load_images
from lrputils.linear_attention.model import Setting
from lrputils.linear_attention.specifications import measured
from lrputils.linear_attention.training import (
    SHIPPED,
    accuracy,
    epochs_for,
    rounded,
    save_networks,
    train,
)

NETWORKS = "networks"  # folder beside the rows: the networks of training seed 0
_SHARDS, _PLAN = "shards", "plan.json"
_CATEGORIES = ("setting", "removal", "pair")
_SMALL = {"seed": "int16", "id": "int16", "label": "int16", "target": "int16"}
_DECIMALS = 4


def record_mnist(
    dataset: str | Path,
    out: str | Path,
    *,
    settings: Iterable[Setting] = tuple(SHIPPED),
    seeds: int = 10,
    images: int = 200,
    epochs: int | None = None,
    quiet: bool = False,
    command: str | None = None,
) -> Path:
    """Train networks on `dataset`, measure their maps, and write a recorded run to `out`.

    Every network is measured in float64 after its weights went through half precision. Those of
    seed 0 are kept in `out/networks`, so that their rows can be recomputed on any processor;
    training again gives other networks of the same kind wherever float32 rounds otherwise. A
    killed run goes on where it was, and loses at most the network it was at.

    Args:
        dataset: as in `lrputils.data.images.load_images`.
        out: a new folder, or that of the same run, interrupted.
        settings: embedding, pooling and scaling; all that the package carries by default.
        seeds: training seeds a setting, from 0.
        images: how many of the test images are explained, from the first.
        epochs: of training; `epochs_for` the data by default.
        quiet: no progress bar.
        command: what was called, for the provenance.

    Returns:
        `out`, with the rows of `measured` and `provenance.json`. Each row also has the image's
        `label` and the network's test `accuracy`; `r_normalised` is left out, since it is `r`, or
        −r where `flipped`.

    Raises:
        ValueError: no seeds or images, or `out` holds the shards of a run on other data.
        FileExistsError: `out` holds a finished run.
    """
    data, settings, out = load_images(dataset), list(settings), Path(out).expanduser()
    if seeds < 1 or images < 1 or not settings:
        raise ValueError(f"seeds={seeds}, images={images}, {len(settings)} settings: none may be 0")
    if (out / results.PROVENANCE).exists():
        raise FileExistsError(f"{out} holds a finished run: remove it, or name another folder")
    plan = {"data": data.name, "identity": data.identity, "images": images, "epochs": epochs}
    work = _opened(out / _SHARDS, plan)
    # Seeds outermost: every setting is there, if with fewer seeds, wherever a run is ended.
    todo = [(setting, seed) for seed in range(seeds) for setting in settings]
    for setting, seed in tqdm(todo, desc="networks", disable=quiet):
        if not _shard(work, setting, seed).exists():
            _record_network(work, data, setting, seed, images, epochs)
    shards = [pd.read_parquet(_shard(work, setting, seed)) for setting, seed in todo]
    seconds = sum(shard.attrs["seconds"] for shard in shards)
    parameters = {
        "settings": [setting.name for setting in settings],
        "seeds": seeds,
        "images": images,
        "epochs": {setting.name: epochs or epochs_for(data, setting) for setting in settings},
    }
    provenance = results.provenance(
        command=command or f"record_mnist({str(dataset)!r}, seeds={seeds}, images={images})",
        parameters=parameters,
        seconds=seconds,
        data={"name": data.name, "split": data.note, "identity": data.identity},
    )
    if (work / NETWORKS).exists():
        (work / NETWORKS).replace(out / NETWORKS)
    results.write(out, _joined(shards), provenance)
    shutil.rmtree(work)
    return out


def _record_network(
    work: Path, data: ImageData, setting: Setting, seed: int, images: int, epochs: int | None
) -> None:
    start = time.perf_counter()
    network = rounded(train(data, setting, seed, epochs=epochs))
    test, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    rows = measured([network], test[:images])
    rows = rows.assign(
        seed=seed,
        label=data.test_labels[rows["id"]],
        accuracy=accuracy(network, test, labels),
    )
    if seed == 0:
        save_networks([network], work / NETWORKS)
    rows.attrs["seconds"] = time.perf_counter() - start
    path = _shard(work, setting, seed)
    partial = path.with_suffix(".partial")
    rows.to_parquet(partial)
    partial.replace(path)


def _opened(work: Path, plan: dict) -> Path:
    """Make the folder of shards, or see that the one there belongs to the same run."""
    path = work / _PLAN
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != plan:
        raise ValueError(f"{work} holds shards of another run ({path}): remove it to begin anew")
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan, indent=1), encoding="utf-8")
    return work


def _shard(work: Path, setting: Setting, seed: int) -> Path:
    return work / f"{setting.name}.{seed}.parquet"


def _joined(shards: list[pd.DataFrame]) -> pd.DataFrame:
    """Put shards together, in the fewest bytes: categories, small integers, rounded floats."""
    for shard in shards:
        shard.attrs.clear()
    rows = pd.concat(shards, ignore_index=True).drop(columns="r_normalised")
    order = ["setting", "removal", "pair", "seed", "id"]
    rows = rows.sort_values(order, kind="stable", ignore_index=True)
    floats = rows.select_dtypes("float").columns
    types = dict.fromkeys(_CATEGORIES, "category") | dict.fromkeys(floats, "float32") | _SMALL
    rows[floats] = rows[floats].round(_DECIMALS)
    rest = [name for name in rows if name not in order]
    return rows[order + rest].astype(types)
