"""Train again what the package carries: `python -m lrputils.linear_attention --out DIR`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

import sklearn
import torch
from tqdm import tqdm

from lrputils.data.images import ImageData, load_images
from lrputils.linear_attention.agreement import specifications
from lrputils.linear_attention.model import Setting
from lrputils.linear_attention.training import (
    SHIPPED,
    accuracy,
    epochs_for,
    load_shipped,
    save_networks,
    train,
)

_CARD = """# Linear attention networks of chapter 2

Small (QKᵀ)V networks without softmax, over 14 × 14 pixels, in half precision: use them in float64
through `lrputils.linear_attention.load_shipped(setting, seed)`. They exist so that the chapter's
numbers are the same on every processor; they classify digits, and are good for nothing else.

- **Made by** `python -m lrputils.linear_attention --out DIR`, one file a setting (embedding,
  pooling, input scaling), training seeds 0, 1, … inside. Training again gives networks of the same
  kind, not the same bits.
- **Training**: batches of 8, Adam (learning rate 1e-3), cross-entropy, dim 32.
- **Data**: {data}, {note}.
- **Versions**: torch {torch}, scikit-learn {sklearn}.
- **Licence**: MIT, as the package.
- `mnist_half.csv` is a table, not weights: mean correlations on MNIST's 10,000-image half, made by
  `python -m lrputils.linear_attention --record FILE --dataset FOLDER`; its first line says how.

Test accuracy of the networks as stored:

| setting | epochs | seeds | accuracy |
|---|---|---|---|
{rows}
"""


def make_assets(
    folder: str | Path,
    data: ImageData,
    seeds: Mapping[Setting, int] = SHIPPED,
    epochs: int | None = None,
) -> Path:
    """Train the networks of `seeds` on `data`, write them and their card; return the folder."""
    for setting, count in tqdm(seeds.items(), desc="settings"):
        save_networks([train(data, setting, seed, epochs=epochs) for seed in range(count)], folder)
    return write_card(folder, data, seeds, epochs)


def write_card(
    folder: str | Path, data: ImageData, seeds: Mapping[Setting, int], epochs: int | None = None
) -> Path:
    """Write README.md beside the networks in `folder`, with their test accuracy as stored."""
    images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    rows = []
    for setting, count in seeds.items():
        stored = (load_shipped(setting, seed, folder) for seed in range(count))
        scores = ", ".join(f"{accuracy(network, images, labels):.3f}" for network in stored)
        taken = epochs or epochs_for(data, setting)
        rows.append(f"| {setting.name} | {taken} | {count} | {scores} |")
    card = _CARD.format(
        data=data.name,
        note=data.note,
        torch=torch.__version__,
        sklearn=sklearn.__version__,
        rows="\n".join(rows),
    )
    (Path(folder) / "README.md").write_text(card, encoding="utf-8")
    return Path(folder)


def record(
    path: str | Path,
    data: ImageData,
    settings: Iterable[Setting] = SHIPPED,
    *,
    seeds: int = 3,
    images: int = 300,
) -> Path:
    """Train on `data`, write the table of all specifications to a CSV file, return its path.

    Beside the columns of `specifications`, `worst` and `best` are the lowest and highest test
    accuracy over a setting's seeds.
    """
    trained = {
        setting.name: [train(data, setting, seed) for seed in range(seeds)]
        for setting in tqdm(list(settings), desc="settings")
    }
    table = specifications(trained.values(), torch.from_numpy(data.test_images[:images]))
    test, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    reached = {
        name: [accuracy(network, test, labels) for network in networks]
        for name, networks in trained.items()
    }
    table["worst"] = table["setting"].map({name: min(values) for name, values in reached.items()})
    table["best"] = table["setting"].map({name: max(values) for name, values in reached.items()})
    head = (
        f"# {data.name}: {data.note}; {seeds} training seeds, {images} test images, "
        f"IG from zero; torch {torch.__version__}, {date.today().isoformat()}\n"
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + table.to_csv(index=False, float_format="%.6f"), encoding="utf-8")
    return path


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m lrputils.linear_attention", description=__doc__
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="folder for trained weights and their card")
    where.add_argument("--record", type=Path, help="CSV file for the table of all specifications")
    parser.add_argument(
        "--dataset", default="digits", help="digits, mnist or a folder (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    data = load_images(chosen.dataset)
    print(make_assets(chosen.out, data) if chosen.out else record(chosen.record, data))


if __name__ == "__main__":
    main()
