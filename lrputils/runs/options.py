"""What the command lines of runs have in common."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OF_TEXTS = ("split", "text_column", "label_column", "limit", "seed")
# Where and how it runs does not change the rows.
_LEFT_OUT = ("program", "verb", "kind", "run", "quiet", "device", "out", "dry_run", "price")
# The smallest value that makes sense of each number of the command line.
_FROM_ONE = "limit max_length batch_size shard seeds images repeats longest processes"
_LEAST = {"seed": 0} | dict.fromkeys(_FROM_ONE.split(), 1)


def check_numbers(values: Mapping[str, Any], written: str = "{name}={value}") -> None:
    """Refuse numbers that no run can have; `written` is how the message writes a name and value."""
    for name, least in _LEAST.items():
        if (value := values.get(name)) is not None and value < least:
            place = written.format(name=name, flag=flag(name), value=value)
            raise ValueError(f"{place}: the smallest possible value is {least}")


def choice(kind: argparse.ArgumentParser) -> None:
    """Add what chooses a classifier and texts."""
    kind.add_argument("--model", metavar="NAME", help="folder or hub name (default: embedded)")
    kind.add_argument("--revision", metavar="REV", help="branch, tag or commit of the model")
    kind.add_argument("--dataset", metavar="NAME", help="file, folder, hub name (default: reviews)")
    kind.add_argument("--split", metavar="NAME", help="of the data set")
    kind.add_argument(
        "--text-column", metavar="NAME", help="of texts; A,B: of pairs (default: usual)"
    )
    kind.add_argument("--label-column", metavar="NAME", help="of labels (default: usual names)")
    kind.add_argument("--limit", type=int, metavar="N", help="at most this many texts")
    kind.add_argument("--seed", type=int, metavar="N", help="draw the texts by this seed")
    kind.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens")
    kind.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="texts a batch (default: 16)"
    )
    kind.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda:1")


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Load what `choice` chooses; return it as the arguments of a recording or an evaluation."""
    from lrputils.data.texts import stream_texts
    from lrputils.model.classifier import load_classifier

    of_texts = {name: getattr(options, name) for name in _OF_TEXTS}
    return {
        "classifier": load_classifier(
            options.model, revision=options.revision, device=_device(options.device)
        ),
        "texts": stream_texts(options.dataset, **of_texts),
        "out": options.out,
        "quiet": options.quiet,
        "command": command(options),
        "parameters": of_texts,
    }


def _device(name: str) -> str:
    """Give each process of `torchrun` a GPU of its own."""
    import torch

    place = os.environ.get("LOCAL_RANK")
    if name != "auto" or place is None or not torch.cuda.is_available():
        return name
    return f"cuda:{int(place) % torch.cuda.device_count()}"


def listed(names: str | None) -> tuple[str, ...] | None:
    """Split "a, b"; None stays None."""
    return None if names is None else tuple(filter(None, names.replace(" ", "").split(",")))


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that bound a batch and a text."""
    return {"batch_size": options.batch_size, "max_length": options.max_length}


def command(options: argparse.Namespace) -> str:
    """Return the command of these options; of local paths only the last two parts."""
    words = getattr(options, "program", f"lrputils {getattr(options, 'verb', '')}").split()
    for name, value in vars(options).items():
        for one in value if isinstance(value, list) else [value]:
            if name not in _LEFT_OUT and one is not None and one is not False:
                words += [flag(name)] if one is True else [flag(name), shortened(str(one))]
    return shlex.join([*words, "--out", "DIR"])


def flag(name: str) -> str:
    """Return the option that sets an attribute of the parsed command line."""
    return f"--{name.replace('_', '-')}"


def shortened(place: str) -> str:
    """Return a data set's or model's name as others may read it: of a path, the last two parts."""
    name, comma, options = place.partition(",")
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute() or name.startswith("."):
        name = "/".join(path.parts[-2:])
    return name + comma + options
