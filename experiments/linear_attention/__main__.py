"""Train chapter 2's shipped networks again: `python -m experiments.linear_attention --out DIR`.

Their card, with the accuracies of those that are shipped, is
`experiments/assets/linear_attention/README.md`.
"""

from __future__ import annotations

from pathlib import Path

from experiments.command import main


def make(*, out: Path, dataset: str = "digits", epochs: int | None = None) -> Path:
    """Train the shipped networks of chapter 2 again, about half an hour of one core.

    Args:
        out: folder for the weights, a file a setting
        dataset: digits, mnist or a folder
        epochs: of each network (default: by the data and setting)
    """
    from experiments.images import load_images
    from experiments.linear_attention import SHIPPED, save_networks, train

    data = load_images(dataset)
    for setting, seeds in SHIPPED.items():
        networks = [train(data, setting, seed, epochs=epochs) for seed in range(seeds)]
        save_networks(networks, out)
    return out


if __name__ == "__main__":
    main(make, "python -m experiments.linear_attention")
