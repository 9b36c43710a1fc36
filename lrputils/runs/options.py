"""The command line of recorded runs: `lrputils record texts …`, `… softmax …`, `… mnist …`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

_PATCHING = """\
Replace parts of the network, one at a time, and measure what each backward pass predicts of it.
Chapter 7 reads the rows. Six forward passes a text for each of --patches, and ten more."""

_MNIST = """\
Train linear attention networks on images and measure their maps: chapter 2's experiment. What was
killed goes on by the same command."""

_OF_TEXTS = ("split", "text_column", "label_column", "limit", "seed")
# Where and how it runs does not change the rows.
_LEFT_OUT = ("verb", "kind", "run", "quiet", "device", "out")
# The smallest value that makes sense of each number of the command line.
_FROM_ONE = "limit max_length batch_size chunk shard seeds images texts repeats patches"
_LEAST = {"seed": 0, "ablation_curves": 0} | dict.fromkeys(_FROM_ONE.split(), 1)


def check_numbers(values: Mapping[str, Any], written: str = "{name}={value}") -> None:
    """Refuse numbers that no run can have; `written` is how the message writes a name and value."""
    for name, least in _LEAST.items():
        if (value := values.get(name)) is not None and value < least:
            place = written.format(name=name, flag=flag(name), value=value)
            raise ValueError(f"{place}: the smallest possible value is {least}")


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
        ("softmax", "its attention, layer by layer", _SOFTMAX, _record_softmax, _choice),
        (
            "refactored",
            "its maps through other forms of attention",
            _REFACTORED,
            _record_refactored,
            _choice,
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


def _choice(kind: argparse.ArgumentParser) -> None:
    """Add what chooses a classifier and texts."""
    kind.add_argument("--model", metavar="NAME", help="folder or hub name (default: embedded)")
    kind.add_argument("--revision", metavar="REV", help="branch, tag or commit of the model")
    kind.add_argument("--dataset", metavar="NAME", help="file, folder, hub name (default: reviews)")
    kind.add_argument("--split", metavar="NAME", help="of the data set")
    kind.add_argument("--text-column", metavar="NAME", help="of texts (default: usual names)")
    kind.add_argument("--label-column", metavar="NAME", help="of labels (default: usual names)")
    kind.add_argument("--limit", type=int, metavar="N", help="at most this many texts")
    kind.add_argument("--seed", type=int, metavar="N", help="draw the texts by this seed")
    kind.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens")
    kind.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="texts a batch (default: 16)"
    )
    kind.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda:1")


def _texts_options(kind: argparse.ArgumentParser) -> None:
    _choice(kind)
    kind.add_argument("--methods", metavar="A,B", help="these only (default: all)")
    kind.add_argument("--curves", metavar="A,B", help="perturb along these only (default: all)")
    kind.add_argument(
        "--chunk", type=int, default=1, metavar="N", help="tokens that go at once (default: 1)"
    )
    kind.add_argument(
        "--ablation-curves", type=int, metavar="N", help="perturb along ablations on N texts only"
    )


def _maps_options(kind: argparse.ArgumentParser) -> None:
    _choice(kind)
    kind.add_argument("--removals", metavar="A,B", help="these only (default: all; '': none)")
    kind.add_argument("--methods", metavar="A,B", help="these maps only (default: all)")


def _patching_options(kind: argparse.ArgumentParser) -> None:
    _choice(kind)
    kind.add_argument(
        "--patches", type=int, default=16, metavar="N", help="a text and part (default: 16)"
    )


def _mnist_options(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--dataset", default="mnist", metavar="NAME", help="default: %(default)s")
    kind.add_argument("--seeds", type=int, default=10, metavar="N", help="networks a setting")
    kind.add_argument("--images", type=int, default=200, metavar="N", help="images a network")


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Load what `_choice` chooses; return it as the arguments of a recording."""
    from lrputils.data.texts import load_texts
    from lrputils.model.classifier import load_classifier

    return {
        "classifier": load_classifier(
            options.model, revision=options.revision, device=options.device
        ),
        "texts": load_texts(
            options.dataset, **{name: getattr(options, name) for name in _OF_TEXTS}
        ),
        "out": options.out,
        "quiet": options.quiet,
        "command": _command(options),
        "parameters": {name: getattr(options, name) for name in ("split", "limit", "seed")},
    }


def _record_texts(options: argparse.Namespace) -> Path:
    from lrputils.attribution import METHODS
    from lrputils.runs.texts import Settings, record

    settings = Settings(
        methods=tuple(METHODS) if options.methods is None else _listed(options.methods),
        curves=_listed(options.curves),
        chunk=options.chunk,
        max_length=options.max_length,
        ablation_curves=options.ablation_curves,
        batch_size=options.batch_size,
    )
    return record(**_chosen(options), settings=settings)


def _listed(names: str | None) -> tuple[str, ...] | None:
    """Split "a, b"; None stays None."""
    return None if names is None else tuple(filter(None, names.replace(" ", "").split(",")))


def _record_maps(options: argparse.Namespace) -> Path:
    from lrputils.removal.leave_one_out import REMOVALS
    from lrputils.runs.texts import record_maps

    return record_maps(
        **_chosen(options),
        removals=REMOVALS if options.removals is None else _listed(options.removals),
        methods=_listed(options.methods),
        max_length=options.max_length,
        batch_size=options.batch_size,
    )


def _record_softmax(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_softmax

    return record_softmax(**_chosen(options), **_sizes(options))


def _record_refactored(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_refactored

    return record_refactored(**_chosen(options), **_sizes(options))


def _record_patching(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_patching

    how = {name: getattr(options, name) for name in ("patches", "max_length")}
    return record_patching(**_chosen(options), **how)


def _sizes(options: argparse.Namespace) -> dict[str, Any]:
    return {"batch_size": options.batch_size, "max_length": options.max_length}


def _record_mnist(options: argparse.Namespace) -> Path:
    from lrputils.runs.mnist import record_mnist

    return record_mnist(
        options.dataset,
        options.out,
        seeds=options.seeds,
        images=options.images,
        quiet=options.quiet,
        command=_command(options),
    )


def _command(options: argparse.Namespace) -> str:
    """Return the command of these options; of local paths only the last two parts."""
    words = ["lrputils", "record", options.kind]
    for name, value in vars(options).items():
        if name not in _LEFT_OUT and value is not None:
            words += [flag(name), shortened(str(value))]
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
