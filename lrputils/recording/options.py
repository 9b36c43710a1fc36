"""The command line of recorded runs: `lrputils record texts …` and `lrputils record mnist …`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

_TEXTS = """\
Measure every method, read-out and layer ablation on every text, and write a row each to
DIR/rows.parquet, with DIR/provenance.json. What was killed goes on by the same command.

Leave-one-out costs a forward pass a token: on one core, sentences take about 3 seconds each with a
12-layer model of 384, reviews a minute. --ablation-curves and --max-length bound it."""

_MNIST = """\
Train linear attention networks on images and measure their maps: chapter 2's experiment. What was
killed goes on by the same command."""


def add_verb(verbs: argparse._SubParsersAction) -> None:
    """Add `record` and its two kinds."""
    verb = verbs.add_parser(
        "record",
        help="record a run for the book to quote",
        description="Record a run: a row per example and method, and where the rows come from.",
    )
    kinds = verb.add_subparsers(dest="kind", required=True, metavar="KIND")
    _add_texts(kinds)
    _add_mnist(kinds)


def _add_texts(kinds: argparse._SubParsersAction) -> None:
    kind = kinds.add_parser(
        "texts",
        help="a text classifier on texts",
        description=_TEXTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kind.add_argument("--model", metavar="NAME", help="folder or hub name (default: embedded)")
    kind.add_argument("--revision", metavar="REV", help="branch, tag or commit of the model")
    kind.add_argument("--dataset", metavar="NAME", help="file, folder, hub name (default: reviews)")
    kind.add_argument("--split", metavar="NAME", help="of the data set")
    kind.add_argument("--limit", type=int, metavar="N", help="at most this many texts")
    kind.add_argument("--seed", type=int, metavar="N", help="draw the texts by this seed")
    kind.add_argument("--methods", metavar="A,B", help="these only (default: all)")
    kind.add_argument(
        "--chunk", type=int, default=1, metavar="N", help="tokens that go at once (default: 1)"
    )
    kind.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens")
    kind.add_argument(
        "--ablation-curves", type=int, metavar="N", help="perturb along ablations on N texts only"
    )
    kind.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="texts a batch (default: 16)"
    )
    _add_common(kind)
    kind.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda:1")
    kind.set_defaults(run=_record_texts)


def _add_mnist(kinds: argparse._SubParsersAction) -> None:
    kind = kinds.add_parser("mnist", help="chapter 2's networks on images", description=_MNIST)
    kind.add_argument("--dataset", default="mnist", metavar="NAME", help="default: %(default)s")
    kind.add_argument("--seeds", type=int, default=10, metavar="N", help="networks a setting")
    kind.add_argument("--images", type=int, default=200, metavar="N", help="images a network")
    _add_common(kind)
    kind.set_defaults(run=_record_mnist)


def _add_common(kind: argparse.ArgumentParser) -> None:
    kind.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="e.g. results/sst/NAME"
    )
    kind.add_argument("--quiet", action="store_true", help="no progress")


def _record_texts(options: argparse.Namespace) -> None:
    from lrputils.book.layout import BookError
    from lrputils.data.texts import load_texts
    from lrputils.models import load_classifier
    from lrputils.recording.texts import Settings, record

    try:
        classifier = load_classifier(
            options.model, revision=options.revision, device=options.device
        )
        texts = load_texts(
            options.dataset, split=options.split, limit=options.limit, seed=options.seed
        )
        settings = Settings(
            **({"methods": tuple(options.methods.split(","))} if options.methods else {}),
            chunk=options.chunk,
            max_length=options.max_length,
            ablation_curves=options.ablation_curves,
            batch_size=options.batch_size,
        )
        print(
            record(
                classifier,
                texts,
                options.out,
                settings,
                command=_command(options),
                parameters={"split": options.split, "limit": options.limit, "seed": options.seed},
                quiet=options.quiet,
            )
        )
    except (ValueError, TypeError, OSError) as error:  # a model, texts, a value, the folder
        raise BookError(str(error)) from error


def _record_mnist(options: argparse.Namespace) -> None:
    from lrputils.book.layout import BookError
    from lrputils.linear_attention.recording import record_mnist

    try:
        print(
            record_mnist(
                options.dataset,
                options.out,
                seeds=options.seeds,
                images=options.images,
                quiet=options.quiet,
                command=_command(options),
            )
        )
    except (ValueError, TypeError, OSError) as error:
        raise BookError(str(error)) from error


_LEFT_OUT = ("verb", "kind", "run", "quiet", "device", "out")  # they do not change the rows


def _command(options: argparse.Namespace) -> str:
    """Return the command of these options; of local paths only the last two parts."""
    words = ["lrputils", "record", options.kind]
    for name, value in vars(options).items():
        if name not in _LEFT_OUT and value is not None:
            words += [f"--{name.replace('_', '-')}", _short(str(value))]
    return shlex.join([*words, "--out", "DIR"])


def _short(value: str) -> str:
    path = Path(value).expanduser()
    local = path.exists() or path.is_absolute() or value.startswith(".")
    return "/".join(path.parts[-2:]) if local else value
