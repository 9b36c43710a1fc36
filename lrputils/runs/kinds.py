"""The command line of recordings: `lrputils record texts …`, `lrputils record mnist …`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lrputils.runs.options import choice, chosen, command, listed

_TEXTS = """\
Measure every method, read-out and layer ablation on every text, and write a row each to
DIR/rows.parquet, with DIR/provenance.json. What was killed goes on by the same command.

Leave-one-out costs a forward pass a token. On one core and a 6-layer model of width 384, a sentence
takes about 4 seconds, a review cut at 256 tokens about 20. --curves, --ablation-curves,
--max-length and --methods bound it."""

_SOFTMAX = """\
Measure, for every layer and text, how flat attention is and how far the rules for it are from an
exact removal inside the block: two passes a text. Chapter 5 reads the rows."""

_REFACTORED = """\
Measure how AttnLRP's maps change when every layer computes the same attention in another way.
Chapter 2 reads the rows. Eleven passes forward and back a text, and leave-one-out."""

_MAPS = """\
Keep the maps of every text under each convention: the rules of LRP, where relevance is read, how a
token is removed. Chapter 6 compares them. What was killed goes on by the same command.
Leave-one-out costs most; --removals and --methods bound the work."""

_REMEDY = """\
Keep the map of every text under each setting of the mask gradient, with its cost. Chapter 7 holds
them against leave-one-out, which it takes from `record maps` of the same texts.
What was killed goes on by the same command. About 75 passes a text with all settings."""

_YARDSTICK = """\
Keep each text's LOO, sampled Shapley values with errors, exact leave-two-out on all pairs and the
maps of six methods: chapter 8's rows. What was killed goes on by the same command. A text of n
words costs n (n − 1) / 2 passes for the pairs and up to n − 1 shorter ones an order for the Shapley
values; --permutations and --longest bound them. --exact adds the exact values of texts of at most
16 tokens, by 2ⁿ passes on half of the text."""

_MNIST = """\
Train linear attention networks on images and measure their maps: chapter 2's experiment. What was
killed goes on by the same command."""


_LIST = {"metavar": "A,B"}
_NUMBER = {"type": int, "metavar": "N"}
# Kind → what it records, at more length, and its own options.
_KINDS: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "texts": (
        "a text classifier on texts",
        _TEXTS,
        {
            "--methods": {**_LIST, "help": "these only (default: all but shapley)"},
            "--curves": {**_LIST, "help": "perturb along these only (default: all)"},
            "--chunk": {**_NUMBER, "default": 1, "help": "tokens that go at once (default: 1)"},
            "--ablation-curves": {**_NUMBER, "help": "perturb along ablations on N texts only"},
        },
    ),
    "maps": (
        "its maps under each convention",
        _MAPS,
        {
            "--removals": {**_LIST, "help": "these only (default: all; '': none)"},
            "--methods": {**_LIST, "help": "these maps only (default: all)"},
        },
    ),
    "remedy": (
        "estimates of leave-one-out at a cost",
        _REMEDY,
        {"--settings": {**_LIST, "help": "these only (default: all); loo: exact"}},
    ),
    "yardstick": (
        "its maps beside Shapley values",
        _YARDSTICK,
        {
            "--permutations": {**_NUMBER, "default": 16, "help": "orders a text (default: 16)"},
            "--longest": {**_NUMBER, "help": "leave out texts of more words"},
            "--exact": {"action": "store_true", "help": "exact Shapley values of short texts too"},
        },
    ),
    "softmax": ("its attention, layer by layer", _SOFTMAX, {}),
    "refactored": ("its maps through other forms of attention", _REFACTORED, {}),
    "mnist": (
        "chapter 2's networks on images",
        _MNIST,
        {
            "--dataset": {"default": "mnist", "metavar": "NAME", "help": "default: %(default)s"},
            "--settings": {**_LIST, "help": "as learned-mean-unit (default: the shipped ones)"},
            "--seeds": {**_NUMBER, "default": 10, "help": "networks a setting"},
            "--images": {**_NUMBER, "default": 200, "help": "images a network"},
        },
    ),
}


def add_verb(verbs: argparse._SubParsersAction) -> None:
    """Add `record` and its kinds."""
    verb = verbs.add_parser(
        "record",
        help="record a run for the book to quote",
        description="Record a run: a row per example and method, and where the rows come from.",
    )
    kinds = verb.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (summary, description, own) in _KINDS.items():
        kind = kinds.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name != "mnist":
            choice(kind)
        for option, how in own.items():
            kind.add_argument(option, **how)
        kind.add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="results/EXPERIMENT/RUN"
        )
        kind.add_argument("--quiet", action="store_true", help="no progress")
        kind.set_defaults(run=_record)


def _record(options: argparse.Namespace) -> Path:
    if options.kind == "mnist":
        from lrputils.linear_attention import Setting
        from lrputils.runs.mnist import record_mnist

        how = {name: getattr(options, name) for name in ("seeds", "images", "quiet")}
        if options.settings:
            how["settings"] = [Setting.named(name) for name in listed(options.settings)]
        return record_mnist(options.dataset, options.out, command=command(options), **how)
    from lrputils.runs.studies import STUDIES, record_study
    from lrputils.runs.texts import Settings, record

    names = [option.strip("-").replace("-", "_") for option in _KINDS[options.kind][2]]
    own = {name: getattr(options, name) for name in (*names, "max_length", "batch_size")}
    own = {name: listed(value) if isinstance(value, str) else value for name, value in own.items()}
    if options.kind == "texts":
        asked = {name: value for name, value in own.items() if value is not None}
        return record(**chosen(options), settings=Settings(**asked))
    known = (*STUDIES[options.kind].options, "longest")
    own = {name: value for name, value in own.items() if name in known}
    return record_study(options.kind, **chosen(options), **own)
