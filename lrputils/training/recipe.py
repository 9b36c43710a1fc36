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
a split, a data set of the Hugging Face hub, "reviews" or "reviews-long". Where a folder or a data
set of the hub has several splits, --data and --unlabelled take "train".

What was killed goes on by the same command. Training runs on a GPU if there is one, in bfloat16
where the GPU has it. It is done by the Trainer of `transformers`, which needs `accelerate`."""

EPILOG = """\
examples:
  lrputils train --data reviews.csv --out mine
  lrputils train --data mine.csv --validation test.csv --base bert-base-uncased --out mine
  lrputils train --data sst2/train.parquet --unlabelled imdb/unsupervised.parquet --epochs 2 \\
    --validation sst2/validation.parquet --labels negative positive --out mine"""

PRETRAINED_RATE, FROM_SCRATCH_RATE, MASKED_RATE = 5e-5, 5e-4, 1e-3  # learning rates, the highest
_SHAPE = ("vocabulary", "layers", "hidden", "heads", "dropout")  # of a network from scratch


def _option(default: Any, help_text: str, metavar: str = "N") -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar})


@dataclass(frozen=True)
class Recipe:
    """What to learn from, what to build, how to train it; each field is an option.

    Two trainings of one recipe on one machine give the same weights, unless one was killed in
    pretraining: its masks are then drawn again.
    """

    data: str = _option(MISSING, "labelled texts to learn from", "DATA")
    validation: str | None = _option(
        None, "labelled texts to measure on (default: a tenth of --data, held out)", "DATA"
    )
    unlabelled: str | None = _option(None, "texts to pretrain on: masks are guessed", "DATA")
    columns: str = _option("", "of texts (pairs: A,B) and labels (default: usual)", "TEXT,LABEL")
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

    @property
    def rate(self) -> float:
        """The highest learning rate of fine-tuning."""
        pretrained = self.base or self.unlabelled
        return self.learning_rate or (PRETRAINED_RATE if pretrained else FROM_SCRATCH_RATE)

    def command(self) -> str:
        """Return the command of this recipe: what differs from the defaults, paths shortened."""
        words = ["lrputils", "train", "--out", "DIR"]
        for f in fields(self):
            if (value := getattr(self, f.name)) != f.default:
                values = value if f.name == "labels" else [shortened(str(value))]
                words += [flag(f.name), *values]
        return shlex.join(words)


def add_verb(verbs: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `train`, whose options are the fields of a recipe.

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
        shown = f.default is not MISSING and f.default not in (None, (), "")
        verb.add_argument(
            flag(f.name),
            type=(get_args(kinds[f.name]) or [kinds[f.name]])[0],
            nargs="+" if f.name == "labels" else None,
            default=None if f.default is MISSING else f.default,
            required=f.default is MISSING,
            metavar=f.metadata["metavar"],
            help=f.metadata["help"] + (" (default: %(default)s)" if shown else ""),
        )
    verb.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    add_conditions(verb)
    return verb


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add what does not change the weights."""
    auto = "auto takes a GPU if there is one"
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto", help=auto)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def recipe_of(parsed: argparse.Namespace) -> Recipe:
    """Return the recipe that parsed options describe."""
    return Recipe(**{f.name: getattr(parsed, f.name) for f in fields(Recipe)})
