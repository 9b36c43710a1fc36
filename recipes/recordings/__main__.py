"""`python -m recipes.recordings KIND --model DIR --dataset FILE --limit N --seed 0 --out DIR`."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lrputils.runs.options import choice, chosen, shortened
from lrputils.runs.studies import take_short
from lrputils.runs.texts import compact, in_parts

KINDS = {
    "curves": "r and perturbation curves of the methods and all layer ablations, at every read-out",
    "baselines": "Integrated Gradients from three baselines, and rollout with the residual",
    "epsilon": "LRP with ε > 0",
    "depth": "the mask gradient of the last layers against exact removal there",
    "patching": "effects of patches of the network's parts, and each backward pass's estimates",
    "layer_pairs": "exact leave-two-out with the pair hidden from a layer on",
    "random_weights": "agreement with LOO as the model's weights are randomised",
    "ceiling": "LOO against itself under an edit that leaves the meaning",
    "routes": "what AttnLRP delivers through values, queries and keys of each layer",
    "uniform": "predictions with uniform attention in some layers",
}


def main(arguments: list[str] | None = None) -> Path:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.recordings", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, what in KINDS.items():
        kind = kinds.add_parser(name, help=what)
        choice(kind)
        kind.add_argument(
            "-o",
            "--option",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="of `measure`, in YAML: chunk=16, removals=[attention-mask]",
        )
        kind.add_argument("--longest", type=int, metavar="N", help="leave out texts of more words")
        kind.add_argument("--shard", type=int, default=16, metavar="N", help="texts a shard")
        kind.add_argument("--out", type=Path, required=True, metavar="DIR")
        kind.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    options.verb = "record"
    measure = import_module(f"recipes.recordings.{options.kind}").measure
    own = _own(measure, options)
    given = chosen(options)
    classifier = given.pop("classifier")
    texts = take_short(given.pop("texts"), options.longest)
    told = {**own, "longest": options.longest, "shard": options.shard}
    given["command"] = _command(options)
    return in_parts(
        lambda numbers: _rounded(measure(classifier, texts.take(numbers), **own)),
        classifier,
        texts,
        given.pop("out"),
        told,
        **given,
    )


def _rounded(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of what was measured; ε is a setting."""
    settings = rows[["epsilon"]] if "epsilon" in rows else rows[[]]
    return compact(rows.drop(columns=settings.columns)).join(settings)


def _own(measure: Any, options: argparse.Namespace) -> Mapping[str, Any]:
    """The arguments of `measure`, its defaults included; ValueError for one that it lacks."""
    known = [p for p in inspect.signature(measure).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own = {p.name: p.default for p in known}
    own |= {name: getattr(options, name) for name in ("batch_size", "max_length") if name in own}
    for given in options.option:
        name, _, value = given.partition("=")
        if name not in own:
            raise ValueError(f"--option {given}: {options.kind} has the options {[*own]}")
        own[name] = yaml.safe_load(value)
    return own


def _command(options: argparse.Namespace) -> str:
    """What to call to get the same rows, without local paths."""
    said = ["python -m recipes.recordings", options.kind]
    for name in ("model", "dataset"):
        if value := getattr(options, name):
            said += [f"--{name}", shortened(value)]
    for name in ("split", "limit", "seed", "longest", "max_length", "batch_size", "shard"):
        if (value := getattr(options, name)) is not None:
            said += [f"--{name.replace('_', '-')}", str(value)]
    said += [f"-o {given}" for given in options.option]
    return " ".join([*said, "--out DIR"])


if __name__ == "__main__":
    try:
        print(main())
    except (OSError, ValueError) as error:
        sys.exit(f"recipes.recordings: {error}")
