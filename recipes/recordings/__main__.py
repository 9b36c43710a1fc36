"""`python -m recipes.recordings KIND --model DIR --dataset FILE --limit N --seed 0 --out DIR`.

What was killed goes on by the same command. `mnist` and `images`, which train networks, are
commands of their own: `python -m recipes.recordings.mnist`, `python -m recipes.recordings.images`.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lrputils.data.texts import Texts, TextStream
from lrputils.runs.datasets import Settings, compact, record
from lrputils.runs.options import check_numbers, choice, chosen

# Kind → what it records, by `measure` of the module of that name or by `_IN_PACKAGE`.
KINDS = {
    "texts": "r and perturbation curves of the methods and layer ablations: `sst`, `imdb`",
    "maps": "maps under each convention: rules, read-out, removal",
    "remedy": "the mask gradient's maps at a cost, under each setting",
    "yardstick": "maps beside Shapley values and exact leave-two-out on all pairs",
    "softmax": "how flat attention is and how far the rules for it are from an exact removal",
    "refactored": "AttnLRP's maps when every layer computes the same attention in another way",
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
_IN_PACKAGE = {
    "maps": "lrputils.study.conventions:maps",
    "yardstick": "lrputils.study.yardstick:measured",
    "refactored": "lrputils.study.refactorings:compared",
}
_OWN_DEFAULTS = {"refactored": {"controls": False}}


def main(arguments: list[str] | None = None) -> Path:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.recordings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    options.program = f"python -m recipes.recordings {options.kind}"
    check_numbers(vars(options), "{flag} {value}")
    measure = measure_of(options.kind)
    own = _own(measure, options)
    given = chosen(options)
    classifier, texts = given["classifier"], take_short(given["texts"], options.longest)
    told = {"longest": options.longest, "shard": options.shard}
    return record(
        lambda some: rounded(measure(classifier, some, **own)),
        classifier,
        texts,
        options.out,
        Settings((), options.max_length, shard=options.shard),
        options={**given["parameters"], **own, **told},
        command=given["command"],
        quiet=options.quiet,
    )


def measure_of(kind: str) -> Callable[..., pd.DataFrame]:
    """Return what measures texts for a kind of recording."""
    module, _, name = _IN_PACKAGE.get(kind, f"recipes.recordings.{kind}:measure").partition(":")
    return getattr(import_module(module), name)


def rounded(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of what was measured, and of a map 14 bits: more would not be squeezed."""
    rows = rows.reset_index(drop=True)
    if "scores" in rows:
        return rows.assign(scores=rows.scores.map(_shortened))
    if "form" in rows and "moved" in rows:  # differences down to the last bits
        return rows
    settings = rows[["epsilon"]] if "epsilon" in rows else rows[[]]
    return compact(rows.drop(columns=settings.columns)).join(settings)


def _shortened(scores: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(scores)
    return np.ldexp(np.round(mantissa * 2**14) / 2**14, exponent).astype(np.float32)


def take_short(texts: TextStream | Texts, longest: int | None) -> TextStream | Texts:
    """Return the texts of at most `longest` words, all for None; ValueError if none is left."""
    if longest is None:
        return texts
    whole = next(iter(texts.parts(sys.maxsize)))
    short = [i for i, text in enumerate(whole) if len(text.split()) <= longest]
    if not short:
        raise ValueError(f"--longest {longest}: each of the {len(whole)} texts has more words")
    return whole.take(short)


def _own(measure: Callable[..., Any], options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `measure`, its defaults included; ValueError for one that it lacks."""
    known: dict[str, Any] = {}
    for follow in (True, False):  # what is measured in batches takes their size, too
        signature = inspect.signature(measure, follow_wrapped=follow)
        named = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        known |= {p.name: p.default for p in named if not isinstance(p.default, Mapping)}
    own = known | _OWN_DEFAULTS.get(options.kind, {})
    own |= {name: getattr(options, name) for name in ("batch_size", "max_length") if name in own}
    for given in options.option:
        name, _, value = given.partition("=")
        if name not in own:
            raise ValueError(f"--option {given}: {options.kind} has the options {[*own]}")
        own[name] = yaml.safe_load(value)
    return own


if __name__ == "__main__":
    try:
        print(main())
    except (OSError, ValueError) as error:
        sys.exit(f"recipes.recordings: {error}")
