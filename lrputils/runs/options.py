"""What the command lines of runs have in common, and `lrputils evaluate …`."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
_FROM_ONE = "limit max_length batch_size chunk shard seeds images texts repeats patches longest"
_LEAST = {"seed": 0, "ablation_curves": 0} | dict.fromkeys(_FROM_ONE.split(), 1)


def check_numbers(values: Mapping[str, Any], written: str = "{name}={value}") -> None:
    """Refuse numbers that no run can have; `written` is how the message writes a name and value."""
    for name, least in _LEAST.items():
        if (value := values.get(name)) is not None and value < least:
            place = written.format(name=name, flag=flag(name), value=value)
            raise ValueError(f"{place}: the smallest possible value is {least}")


def add_evaluate(verbs: argparse._SubParsersAction) -> None:
    """Add `evaluate`."""
    verb = verbs.add_parser(
        "evaluate",
        help="measure methods on a data set of any size",
        description=_EVALUATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    choice(verb)
    verb.add_argument(
        "--methods",
        metavar="A,B",
        help="beside loo (default: attnlrp,cp-lrp); see lrputils.METHODS",
    )
    verb.add_argument(
        "--long", default="cut", metavar="HOW", help="cut (the default) or refuse longer texts"
    )
    verb.add_argument(
        "--precision",
        default="float32",
        metavar="P",
        help="of loo: float32 (exact), bf16, on a GPU tf32; checked on rows that run in both",
    )
    verb.add_argument(
        "--tolerance",
        type=float,
        default=0.002,
        metavar="X",
        help="run a text again in float32 where r with float32's loo may be 1 - X (default: .002)",
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


def choice(kind: argparse.ArgumentParser) -> None:
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


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """Load what `choice` chooses; return it as the arguments of a recording or an evaluation."""
    from lrputils.data.streams import stream_texts
    from lrputils.data.texts import load_texts
    from lrputils.model.classifier import load_classifier

    streamed = options.verb in ("evaluate", "audit")
    load = stream_texts if streamed else load_texts
    names = _OF_TEXTS if streamed else ("split", "limit", "seed")
    return {
        "classifier": load_classifier(
            options.model, revision=options.revision, device=_device(options.device)
        ),
        "texts": load(options.dataset, **{name: getattr(options, name) for name in _OF_TEXTS}),
        "out": options.out,
        "quiet": options.quiet,
        "command": command(options),
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
    asked = {} if options.methods is None else {"methods": listed(options.methods)}
    asked |= {name: getattr(options, name) for name in ("long", "shard", "precision", "tolerance")}
    settings = Settings(**asked, **sizes(options))
    given = chosen(options)
    if options.dry_run:
        return estimate(given["classifier"], given["texts"], settings, price=options.price)
    out = evaluate_dataset(**given, settings=settings)
    return None if rank() else out


def listed(names: str | None) -> tuple[str, ...] | None:
    """Split "a, b"; None stays None."""
    return None if names is None else tuple(filter(None, names.replace(" ", "").split(",")))


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that bound a batch and a text."""
    return {"batch_size": options.batch_size, "max_length": options.max_length}


def command(options: argparse.Namespace) -> str:
    """Return the command of these options; of local paths only the last two parts."""
    words = ["lrputils", options.verb, *([options.kind] if options.verb == "record" else [])]
    for name, value in vars(options).items():
        if name not in _LEFT_OUT and value is not None and value is not False:
            words += [flag(name)] if value is True else [flag(name), shortened(str(value))]
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
