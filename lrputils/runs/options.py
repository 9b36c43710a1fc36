"""The command line of runs: `lrputils evaluate …`, `lrputils record texts …`, `… mnist …`."""

from __future__ import annotations

import argparse
import os
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

_REMEDY = """\
Keep the map of every text under each setting of the mask gradient, with its cost. Chapter 7 holds
them against leave-one-out, which it takes from `record maps` of the same texts.
What was killed goes on by the same command. About 75 passes a text with all settings."""


_YARDSTICK = """\
Keep each text's LOO, sampled Shapley values with errors, exact leave-two-out on all pairs and the
maps of six methods: chapter 8's rows. What was killed goes on by the same command. A text of n
words costs n (n − 1) / 2 passes for the pairs and up to n − 1 shorter ones an order for the Shapley
values; --permutations and --longest bound them."""

_MNIST = """\
Train linear attention networks on images and measure their maps: chapter 2's experiment. What was
killed goes on by the same command."""

_EVALUATE = """\
Measure methods on every text of a data set, against exact leave-one-out. DIR/rows.parquet gets a
row a text and method: correlations (r, spearman), the prediction, and the map itself (scores,
pieces: the tokens). DIR/provenance.json says where they come from.

Texts are read as they are needed; their number does not matter. What was killed goes on by the same
command. Several processes share the work, and give the same rows:

    torchrun --nproc-per-node=4 --max-restarts=3 -m lrputils evaluate --dataset D --out DIR

With several nodes DIR is a folder that all of them see. For Ray Data, see
lrputils.study.batches."""

_OF_TEXTS = ("split", "text_column", "label_column", "limit", "seed")
# Where and how it runs does not change the rows.
_LEFT_OUT = ("verb", "kind", "run", "quiet", "device", "out", "dry_run", "price")
# The smallest value that makes sense of each number of the command line.
_LEAST = {"seed": 0, "ablation_curves": 0, "longest": 1} | dict.fromkeys(
    ("limit", "max_length", "batch_size", "chunk", "shard", "seeds", "images", "texts", "repeats"),
    1,
)


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
        ("softmax", "its attention, layer by layer", _SOFTMAX, _record_softmax, _choice),
        (
            "refactored",
            "its maps through other forms of attention",
            _REFACTORED,
            _record_refactored,
            _choice,
        ),
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


def add_evaluate(verbs: argparse._SubParsersAction) -> None:
    """Add `evaluate`."""
    verb = verbs.add_parser(
        "evaluate",
        help="measure methods on a data set of any size",
        description=_EVALUATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _choice(verb)
    verb.add_argument(
        "--methods",
        metavar="A,B",
        help="beside loo (default: attnlrp,cp-lrp); see lrputils.METHODS",
    )
    verb.add_argument(
        "--long", default="cut", metavar="HOW", help="cut (the default) or refuse longer texts"
    )
    verb.add_argument(
        "--shard", type=int, default=64, metavar="N", help="texts a shard (default: %(default)s)"
    )
    verb.add_argument(
        "--dry-run", action="store_true", help="say what it will take, and write nothing"
    )
    verb.add_argument("--price", type=float, metavar="X", help="of a device hour, for --dry-run")
    verb.add_argument("--out", type=Path, metavar="DIR", help="where the rows go")
    verb.add_argument("--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=_evaluate)


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
    kind.add_argument("--methods", metavar="A,B", help="these only (default: all but shapley)")
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


def _remedy_options(kind: argparse.ArgumentParser) -> None:
    _choice(kind)
    kind.add_argument("--settings", metavar="A,B", help="these only (default: all); loo: exact")


def _yardstick_options(kind: argparse.ArgumentParser) -> None:
    _choice(kind)
    kind.add_argument(
        "--permutations", type=int, default=16, metavar="N", help="orders a text (default: 16)"
    )
    kind.add_argument("--longest", type=int, metavar="N", help="leave out texts of more words")


def _mnist_options(kind: argparse.ArgumentParser) -> None:
    kind.add_argument("--dataset", default="mnist", metavar="NAME", help="default: %(default)s")
    kind.add_argument("--seeds", type=int, default=10, metavar="N", help="networks a setting")
    kind.add_argument("--images", type=int, default=200, metavar="N", help="images a network")


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Load what `_choice` chooses; return it as the arguments of a recording or an evaluation."""
    from lrputils.data.texts import load_texts, stream_texts
    from lrputils.model.classifier import load_classifier

    load = stream_texts if options.verb == "evaluate" else load_texts
    names = _OF_TEXTS if options.verb == "evaluate" else ("split", "limit", "seed")
    return {
        "classifier": load_classifier(
            options.model, revision=options.revision, device=_device(options.device)
        ),
        "texts": load(options.dataset, **{name: getattr(options, name) for name in _OF_TEXTS}),
        "out": options.out,
        "quiet": options.quiet,
        "command": _command(options),
        "parameters": {name: getattr(options, name) for name in names},
    }


def _device(name: str) -> str:
    """Give each process of `torchrun` a GPU of its own."""
    import torch

    place = os.environ.get("LOCAL_RANK")
    if name != "auto" or place is None or not torch.cuda.is_available():
        return name
    return f"cuda:{int(place) % torch.cuda.device_count()}"


def _evaluate(options: argparse.Namespace) -> Any:
    from lrputils.runs.datasets import Settings, evaluate_dataset
    from lrputils.runs.estimates import estimate
    from lrputils.runs.shards import rank

    if options.out is None and not options.dry_run:
        raise ValueError("--out DIR says where the rows go; --dry-run needs none")
    asked = {} if options.methods is None else {"methods": _listed(options.methods)}
    settings = Settings(**asked, **_sizes(options), long=options.long, shard=options.shard)
    chosen = _chosen(options)
    if options.dry_run:
        return estimate(chosen["classifier"], chosen["texts"], settings, price=options.price)
    out = evaluate_dataset(**chosen, settings=settings)
    return None if rank() else out


def _record_texts(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import Settings, record

    settings = Settings(
        methods=Settings.methods if options.methods is None else _listed(options.methods),
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
    from lrputils.runs.maps import record_maps

    return record_maps(
        **_chosen(options),
        removals=REMOVALS if options.removals is None else _listed(options.removals),
        methods=_listed(options.methods),
        max_length=options.max_length,
        batch_size=options.batch_size,
    )


def _record_remedy(options: argparse.Namespace) -> Path:
    from lrputils.runs.maps import record_remedy

    settings = _listed(options.settings)
    return record_remedy(**_chosen(options), settings=settings, **_sizes(options))


def _record_yardstick(options: argparse.Namespace) -> Path:
    from lrputils.runs.maps import record_yardstick

    own = {"permutations": options.permutations, "longest": options.longest}
    return record_yardstick(**_chosen(options), **own, **_sizes(options))


def _record_softmax(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_softmax

    return record_softmax(**_chosen(options), **_sizes(options))


def _record_refactored(options: argparse.Namespace) -> Path:
    from lrputils.runs.texts import record_refactored

    return record_refactored(**_chosen(options), **_sizes(options))


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
    words = ["lrputils", options.verb, *([options.kind] if options.verb == "record" else [])]
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
