"""Train chapter 8's models of the planted rule again: `python -m recipes.planted --out FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lrputils.study import planted


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file for the weights")
    parser.add_argument("--steps", type=int, default=400, help="batches")
    chosen = parser.parse_args(arguments)
    models = {seed: planted.train(seed, chosen.steps) for seed in range(planted.SEEDS)}
    planted.save(models, chosen.out)


if __name__ == "__main__":
    main()
