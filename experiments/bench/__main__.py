"""`python -m experiments.bench`: measure groups, and print them."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.bench import groups as measuring
from lrputils.runs.options import run_alone


def bench(
    *,
    model: str = "6x384",
    only: tuple[str, ...] = (),
    repeats: int = 5,
    out: Path = Path("_build/bench"),
    device: str = "cpu",
) -> str:
    """Measure speed, side by side.

    Time this package against plain loops and other libraries, in turn, with the outputs compared,
    and keep each group of measurements in DIR/bench.json when it is done. A ratio is the other
    side's time over ours; its interval holds the median of all turns.

    Args:
        model: LAYERSxWIDTH, or a BERT's folder or name; of a language model --only answers
        only: groups, measured (again) even if kept
        repeats: turns
        out: where the measurements are kept
        device (DEVICE): cpu, cuda:1
    """
    path = measuring.bench(model, only=only, out=out, repeats=repeats, device=device)
    groups, _ = measuring.load(path)
    return "\n\n".join(
        rows.to_string(index=False, float_format="{:.3g}".format) for rows in groups.values()
    )


def main(arguments: list[str] | None = None) -> str:
    """Run the command line."""
    return run_alone(bench, arguments, prog="python -m experiments.bench")


if __name__ == "__main__":
    try:
        print(main())
    except (OSError, ValueError) as error:
        sys.exit(f"experiments.bench: {error}")
