"""A recipe: all that decides which classifier a training gives, and its command line.

The fields of `Recipe` are the options of `lrputils train`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lrputils.runs.options import flag, shortened

DESCRIPTION = """\
Train a text classifier: a small BERT from scratch, or with --base any pretrained model.

  1. A lower-cased WordPiece vocabulary is learned from the texts (not with --base).
  2. With --unlabelled, the network first learns to guess masked words in those texts.
  3. It is fine-tuned on --data. After each epoch its accuracy on --validation is shown.
  4. Weights, tokenizer, config and a model card with the accuracy are written to --out, which
     load_classifier() takes.

DATA is what load_texts() takes: a CSV, TSV, Parquet, JSON or JSON-lines file, a folder with a file
a split, a data set of the Hugging Face hub, "reviews" or "reviews-long". Options of load_texts()
follow after commas: stanfordnlp/sst2,split=train,limit=2000,seed=0. Where a folder or a data set of
the hub has several splits, --data takes "train" unless told otherwise.

What was killed goes on by the same command. Training runs on a GPU if there is one, in bfloat16
where the GPU has it. It is done by the Trainer of `transformers`, which needs `accelerate`."""

EPILOG = """\
examples:
  lrputils train --data reviews.csv --out mine
  lrputils train --data mine.csv --validation test.csv --base bert-base-uncased --out mine
  lrputils train --data sst2/train.parquet --unlabelled imdb/unsupervised.parquet --minutes 30 \\
    --validation sst2/validation.parquet --labels negative positive --out mine"""

PRETRAINED_RATE, FROM_SCRATCH_RATE, MASKED_RATE = 5e-5, 5e-4, 1e-3  # learning rates, the highest
_WHOLE_NUMBERS = ("min_words", "max_words", "limit", "seed")
_OPTIONS = (*_WHOLE_NUMBERS, "split", "text_column", "label_column", "revision")
_SHAPE = ("vocabulary", "layers", "hidden", "heads", "dropout")


def parse(source: str) -> tuple[str, dict[str, str | int]]:
    """Read `DATASET[,option=value…]`; return what `load_texts` takes and its keyword arguments.

    Raises:
        ValueError: an option that `load_texts` does not have, or a value of the wrong kind.
    """
    dataset, *parts = source.split(",")
    options: dict[str, str | int] = {}
    for part in parts:
        key, _, value = part.partition("=")
        if key not in _OPTIONS or (key in _WHOLE_NUMBERS and not value.isdigit()):
            raise ValueError(
                f"{part!r} in {source!r} is not an option of texts: write {' or '.join(_OPTIONS)}, "
                f"then = and a value, which is a whole number for {', '.join(_WHOLE_NUMBERS)}"
            )
        options[key] = int(value) if key in _WHOLE_NUMBERS else value
    return dataset, options


def _option(default: Any, help_text: str, metavar: str = "N") -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar})


@dataclass(frozen=True)
class Recipe:
    """What to learn from, what to build, how to train it; each field is an option.

    Two trainings of one recipe on one machine give the same weights, unless `minutes` ends one or
    it was killed in pretraining, whose masks are then drawn anew.
    """

    data: str = _option(MISSING, "labelled texts to learn from", "DATA")
    validation: str | None = _option(
        None, "labelled texts to measure on (default: a tenth of --data, held out)", "DATA"
    )
    unlabelled: str | None = _option(None, "texts to pretrain on: masks are guessed", "DATA")
    labels: Sequence[str] = _option(
        (), "names of the classes, in order of the sorted labels", "NAME"
    )
    base: str | None = _option(None, "a model to fine-tune: hub name or folder", "MODEL")
    vocabulary: int = _option(8192, "word pieces, at most")
    layers: int = _option(6, "layers of the network")
    hidden: int = _option(128, "its width; feed-forward blocks are four times as wide")
    heads: int = _option(2, "attention heads a layer")
    dropout: float = _option(0.1, "of hidden states, in a network from scratch")
    max_length: int = _option(256, "tokens a text; the rest is cut")
    pretraining_epochs: float = _option(10.0, "passes over --unlabelled")
    epochs: float = _option(4.0, "passes over --data")
    minutes: float | None = _option(None, "fine-tune for this time at most")
    learning_rate: float | None = _option(
        None,
        f"the highest in fine-tuning (default: {PRETRAINED_RATE:g} for a pretrained network, "
        f"{FROM_SCRATCH_RATE:g} from scratch)",
    )
    batch: int = _option(32, "texts a batch")
    seed: int = _option(0, "of first weights, dropout, masks and the order of texts")

    def check(self) -> None:
        """Refuse values out of range, or that contradict each other.

        Raises:
            ValueError: names the option.
        """
        for name, value in asdict(self).items():
            may_be_zero = name in ("seed", "dropout")
            if isinstance(value, int | float) and (value < 0 or not (value or may_be_zero)):
                raise ValueError(f"{flag(name)} {value} must be above 0")
        if self.dropout >= 1:
            raise ValueError(f"--dropout {self.dropout} must be below 1")
        if self.hidden % self.heads:
            raise ValueError(f"--hidden {self.hidden} does not divide into --heads {self.heads}")
        given = [flag(name) for name in _SHAPE if getattr(self, name) != getattr(Recipe, name)]
        if self.base and given:
            raise ValueError(f"--base {self.base} decides {', '.join(given)}: leave out either")
        for source in filter(None, (self.data, self.validation, self.unlabelled)):
            parse(source)

    @property
    def rate(self) -> float:
        """The highest learning rate of fine-tuning."""
        pretrained = self.base or self.unlabelled
        return self.learning_rate or (PRETRAINED_RATE if pretrained else FROM_SCRATCH_RATE)

    def command(self) -> str:
        """Return the command of this recipe: what differs from the defaults, paths shortened."""
        words = ["lrputils", "train", "--out", "DIR"]
        for f in fields(self):
            if f.name == "labels" and self.labels:
                words += ["--labels", *self.labels]
            elif f.name != "labels" and (value := getattr(self, f.name)) != f.default:
                words += [flag(f.name), shortened(str(value))]
        return shlex.join(words)


def add_verb(verbs: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `train`, whose options are the fields of a recipe and of `trainer.Conditions`.

    By hand: transformers' `HfArgumentParser` takes seconds to import, also for the other verbs.
    """
    verb = verbs.add_parser(
        "train",
        help="train a text classifier",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = get_type_hints(Recipe)
    for f in fields(Recipe):
        shown = f.default in (None, (), MISSING) or "default" in f.metadata["help"]
        verb.add_argument(
            flag(f.name),
            type=(get_args(kinds[f.name]) or [kinds[f.name]])[0],
            nargs="+" if f.name == "labels" else None,
            default=None if f.default is MISSING else f.default,
            required=f.default is MISSING,
            metavar=f.metadata["metavar"],
            help=f.metadata["help"] + ("" if shown else " (default: %(default)s)"),
        )
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    add_conditions(verb)
    return verb


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add what does not change the weights: `trainer.Conditions`."""
    parser.add_argument(
        "--checkpoint-minutes",
        type=float,
        default=2.0,
        metavar="N",
        help="what a killed run loses at most (default: %(default)s)",
    )
    parser.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="auto takes a GPU if there is one"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def recipe_of(parsed: argparse.Namespace) -> Recipe:
    """Return the recipe that parsed options describe."""
    return Recipe(**{f.name: getattr(parsed, f.name) for f in fields(Recipe)})
