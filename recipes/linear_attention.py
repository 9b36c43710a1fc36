"""Train the shipped networks of chapter 2 again: `python recipes/linear_attention.py --out DIR`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import sklearn
import torch
from tqdm import tqdm

from lrputils.data.images import ImageData, load_images
from lrputils.linear_attention import (
    SHIPPED,
    Setting,
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

- **Made by** `python recipes/linear_attention.py --out DIR`, one file a setting (embedding,
  pooling, input scaling), training seeds 0, 1, … inside. Training again gives networks of the same
  kind, not the same bits.
- **Training**: batches of 8, Adam (learning rate 1e-3), cross-entropy, dim 32.
- **Data**: {data}, {note}.
- **Versions**: torch {torch}, scikit-learn {sklearn}.
- **Licence**: MIT, as the package.

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
    images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    rows = []
    for setting, count in tqdm(seeds.items(), desc="settings"):
        save_networks([train(data, setting, seed, epochs=epochs) for seed in range(count)], folder)
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


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for trained weights and their card"
    )
    parser.add_argument(
        "--dataset", default="digits", help="digits, mnist or a folder (%(default)s)"
    )
    chosen = parser.parse_args(arguments)
    print(make_assets(chosen.out, load_images(chosen.dataset)))


if __name__ == "__main__":
    main()
