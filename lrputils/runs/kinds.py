"""The command line of recordings: `lrputils record texts …`, `lrputils record mnist …`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lrputils.runs.options import choice, chosen, command, listed, sizes

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
values; --permutations and --longest bound them."""

_PATCHING = """\
Replace parts of the network, one at a time, and measure what each backward pass predicts of it.
Chapter 7 reads the rows. Six forward passes a text for each of --patches, and ten more."""

_MNIST = """\
Train linear attention networks on images and measure their maps: chapter 2's experiment. What was
killed goes on by the same command."""


def add_verb(verbs: argparse._SubParsersAction) -> None:
    """Add `record` and its kinds."""
    verb = verbs.add_parser(
        "record",
        help="record a run for the book to quote",
        description="Record a run: a row per example and method, and where the rows come from.",
    )
    kinds = verb.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, summary, description, record, add_options in (
        ("texts", "a text classifier on texts", _TEXTS, _record_texts, _texts_options),
        ("maps", "its maps under each convention", _MAPS, _record_maps, _maps_options),
        (
            "remedy",
            "estimates of leave-one-out at a cost",
            _REMEDY,
            _record_remedy,
            _remedy_options,
        ),
        (
            "yardstick",
            "its maps beside Shapley values",
            _YARDSTICK,
            _record_yardstick,
            _yardstick_options,
        ),
        ("softmax", "its attention, layer by layer", _SOFTMAX, _record_softmax, choice),
        (
            "refactored",
            "its maps through other forms of attention",
            _REFACTORED,
            _record_refactored,
            choice,
        ),
        ("patching", "its parts, replaced", _PATCHING, _record_patching, _patching_options),
        ("mnist", "chapter 2's networks on images", _MNIST, _record_mnist, _mnist_options),
    ):
        kind = kinds.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(kind)
        kind.add_argument(
            "--out", type=Path, required=True, metavar="DIR", help="results/EXPERIMENT/RUN"
        )
        kind.add_argument("--quiet", action="store_true", help="no progress")
        kind.set_defaults(run=record)


def _texts_options(kind: argparse.ArgumentParser) -> None:
    choice(kind)
    kind.add_argument("--methods", metavar="A,B", help="these only (default: all but shapley)")
    kind.add_argument("--curves", metavar="A,B", help="perturb along these only (default: all)")
    kind.add_argument(
        "--chunk", type=int, default=1, metavar="N", help="tokens that go at once (default: 1)"
    )
    kind.add_argument(
        "--ablation-curves", type=int, metavar="N", help="perturb along ablations on N texts only"
    )


def _maps_options(kind: argparse.ArgumentParser) -> None:
    choice(kind)
    kind.add_argument("--removals", metavar="A,B", help="these only (default: all; '': none)")
    kind.add_argument("--methods", metavar="A,B", help="these maps only (default: all)")


def _remedy_options(kind: argparse.ArgumentParser) -> None:
    choice(kind)
    kind.add_argument("--settings", metavar="A,B", help="these only (default: all); loo: exact")


def _yardstick_options(kind: argparse.ArgumentParser) -> None:
    choice(kind)
    kind.add_argument(
        "--permutations", type=int, default=16, metavar="N", help="orders a text (default: 16)"
    )
    kind.add_argument("--longest", type=int, metavar="N", help="leave out texts of more words")


def _patching_options(kind: argparse.ArgumentParser) -> None:
    choice(kind)
    kind.add_argument(
        "--patches", type=int, default=16, metavar="N", help="a text and part (default: 16)"
    )


def _mnist_options(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--dataset", default="mnist", metavar="NAME", help="default: %(default)s")
    kind.add_argument("--seeds", type=int, default=10, metavar="N", help="networks a setting")
    kind.add_argument("--images", type=int, default=200, metavar="N", help="images a network")


def _record_texts(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import Settings, record

    settings = Settings(
        methods=Settings.methods if options.methods is None else listed(options.methods),
        curves=listed(options.curves),
        chunk=options.chunk,
        max_length=options.max_length,
        ablation_curves=options.ablation_curves,
        batch_size=options.batch_size,
    )
    return record(**chosen(options), settings=settings)


def _record_maps(options: argparse.Namespace) -> Path:
    from lrputils.removal.leave_one_out import REMOVALS
    from lrputils.runs.maps import record_maps

    return record_maps(
        **chosen(options),
        removals=REMOVALS if options.removals is None else listed(options.removals),
        methods=listed(options.methods),
        max_length=options.max_length,
        batch_size=options.batch_size,
    )


def _record_remedy(options: argparse.Namespace) -> Path:
    from lrputils.runs.maps import record_remedy

    settings = listed(options.settings)
    return record_remedy(**chosen(options), settings=settings, **sizes(options))


def _record_yardstick(options: argparse.Namespace) -> Path:
    from lrputils.runs.maps import record_yardstick

    own = {"permutations": options.permutations, "longest": options.longest}
    return record_yardstick(**chosen(options), **own, **sizes(options))


def _record_softmax(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_softmax

    return record_softmax(**chosen(options), **sizes(options))


def _record_refactored(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_refactored

    return record_refactored(**chosen(options), **sizes(options))


def _record_patching(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_patching

    how = {name: getattr(options, name) for name in ("patches", "max_length")}
    return record_patching(**chosen(options), **how)


def _record_mnist(options: argparse.Namespace) -> Path:
    from lrputils.runs.mnist import record_mnist

    return record_mnist(
        options.dataset,
        options.out,
        seeds=options.seeds,
        images=options.images,
        quiet=options.quiet,
        command=command(options),
    )
