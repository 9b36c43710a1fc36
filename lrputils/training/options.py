"""The command line of a recipe: its options, and the command that stands in the card."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import NamedTuple

from lrputils.training.recipe import Recipe, Shape, Source, Stage

DESCRIPTION = """\
Train a BERT text classifier, from scratch or from a base model.

  1. A lower-cased WordPiece vocabulary is learned from the texts to learn from (not with --base).
  2. With --unlabelled, a network built from scratch begins with vectors made from each word
     piece's neighbours in those texts, and then learns to guess masked words in them
     (--mlm-epochs 0: it does not).
  3. With --teacher, another classifier says of the --taught texts how probable each class is; with
     --imitate also what each word means in its place: its hidden states.
  4. The network is fine-tuned on the --train and --taught sets, mixed; after each epoch but the
     last its accuracy on the --evaluate sets is shown. With --shallow-layers, steps 2 and 4 begin
     in a network of fewer layers, several times as fast, to which the others are then added.
  5. Weights in half precision, tokenizer, config and a model card, which states the accuracy, are
     written to --out, which load_classifier() takes.

DATA is a CSV, TSV, Parquet, JSON or JSON-lines file, a folder with a file a split, a data set of
the Hugging Face hub, or "reviews" and "reviews-long", which come with the package. Options follow
after commas: split, text_column, label_column, min_words, max_words, limit, seed, revision, name,
what the card calls the set, and sentences=1, to divide the texts into sentences, of which
min_words, max_words, limit and seed then choose. For example
imdb/test.parquet,limit=2000,seed=0,name=IMDB.

On a GPU, or a CPU with matrix units for it, training runs in bfloat16. What was killed goes on by
the same command. A stage with a limit in minutes ends on time, its learning rate at zero; what
comes before and after (loading and encoding texts, the final measurement) does not count. Training
is done by the Trainer of `transformers`, which needs the package `accelerate`."""

EPILOG = """\
the recipe of the classifier that comes with the package (two hours of two CPU cores, the teacher's
answers included; a GPU affords --hidden 192 and, without --mlm-epochs 0, pretraining):
  lrputils train --out reviewer --labels negative positive \\
    --unlabelled imdb/unsupervised.parquet,name=IMDB-unlabelled \\
                 imdb/train.parquet,name=IMDB-training sst2/train.parquet,name=SST-2-training \\
    --train sst2/train.parquet,name=SST-2 imdb/train.parquet,name=IMDB \\
    --taught imdb/unsupervised.parquet,sentences=1,min_words=4,max_words=28,\
limit=262144,seed=0,name=IMDB-sentences sst2/train.parquet,name=SST-2 \\
    --teacher models/minilm-imdb --imitate \\
    --evaluate sst2/validation.parquet,name=SST-2 \\
               imdb/test.parquet,limit=2000,seed=0,name=IMDB reviews reviews-long \\
    --mlm-epochs 0 --shallow-layers 6 --shallow-epochs 3 --shallow-minutes 34 \\
    --shallow-learning-rate 8e-4 --shallow-max-length 256 \\
    --minutes 34 --epochs 2 --batch-tokens 6144 --learning-rate 4e-4 --max-length 512 --dropout 0
from a base model, on texts of your own:
  lrputils train --out mine --base bert-base-uncased --train mine.csv --evaluate test.csv"""


class _Option(NamedTuple):
    flag: str
    part: str  # of the recipe
    name: str  # of the part's field
    kind: type
    help: str


_GROUPS = {
    "the network, where it is built from scratch": (
        _Option("--layers", "shape", "layers", int, "layers"),
        _Option("--hidden", "shape", "hidden", int, "width; feed-forward blocks have four times"),
        _Option("--head-size", "shape", "head_size", int, "width of an attention head"),
        _Option("--vocabulary", "shape", "vocabulary", int, "word pieces at most"),
        _Option("--positions", "shape", "positions", int, "tokens a text at most"),
    ),
    "pretraining, where there are --unlabelled texts": (
        _Option("--mlm-epochs", "pretraining", "epochs", int, "passes over the texts; may be 0"),
        _Option("--mlm-minutes", "pretraining", "minutes", float, "end after this time at most"),
        _Option("--mlm-batch-tokens", "pretraining", "batch_tokens", int, "tokens a batch"),
        _Option("--mlm-batch-rows", "pretraining", "batch_rows", int, "texts a batch at most"),
        _Option("--mlm-learning-rate", "pretraining", "learning_rate", float, "the highest"),
        _Option("--mlm-max-length", "pretraining", "max_length", int, "longer texts are divided"),
        _Option("--mlm-dropout", "pretraining", "dropout", float, "of hidden states"),
    ),
    "a start with fewer layers, to which the others are then added": (
        _Option("--shallow-layers", "shallow", "layers", int, "layers at first (default: all)"),
        _Option("--shallow-epochs", "shallow", "epochs", int, "passes of a first fine-tuning"),
        _Option("--shallow-minutes", "shallow", "minutes", float, "end after this time at most"),
        _Option("--shallow-learning-rate", "shallow", "learning_rate", float, "its highest"),
        _Option(
            "--shallow-max-length",
            "shallow",
            "max_length",
            int,
            "tokens a text in it (default: as --max-length)",
        ),
    ),
    "fine-tuning": (
        _Option("--epochs", "finetuning", "epochs", int, "passes over the training sets"),
        _Option("--minutes", "finetuning", "minutes", float, "end after this time at most"),
        _Option("--batch-tokens", "finetuning", "batch_tokens", int, "tokens a batch"),
        _Option("--batch-rows", "finetuning", "batch_rows", int, "texts a batch at most"),
        _Option(
            "--learning-rate",
            "finetuning",
            "learning_rate",
            float,
            "the highest (default: 1e-4 for a pretrained network, 5e-4 from scratch)",
        ),
        _Option("--max-length", "finetuning", "max_length", int, "tokens a text; the rest is cut"),
        _Option("--dropout", "finetuning", "dropout", float, "of hidden states"),
    ),
}
_PARTS = ("shape", "pretraining", "shallow", "finetuning")
_DEFAULT = Recipe(train=())


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of a recipe to a parser."""
    texts = verb.add_argument_group("texts")
    texts.add_argument(
        "--train", nargs="+", required=True, metavar="DATA", help="labelled sets to learn from"
    )
    texts.add_argument(
        "--unlabelled",
        nargs="+",
        default=[],
        metavar="DATA",
        help="texts for the first vectors and to pretrain on",
    )
    texts.add_argument(
        "--taught", nargs="+", default=[], metavar="DATA", help="texts that the teacher labels"
    )
    texts.add_argument(
        "--evaluate",
        nargs="*",
        default=[str(source) for source in _DEFAULT.evaluate],
        metavar="DATA",
        help="labelled sets to measure accuracy on (default: reviews reviews-long)",
    )
    texts.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="NAME",
        help="what to call the classes, in the order of the sorted labels",
    )
    for title, options in _GROUPS.items():
        group = verb.add_argument_group(title)
        for option in options:
            default = getattr(getattr(_DEFAULT, option.part), option.name)
            group.add_argument(
                option.flag,
                type=option.kind,
                default=default,
                metavar="N",
                help=option.help + ("" if default is None else " (default: %(default)s)"),
            )
    verb.add_argument("--base", metavar="MODEL", help="a BERT to start from: hub name or folder")
    verb.add_argument(
        "--teacher", metavar="MODEL", help="a classifier of the same classes: hub name or folder"
    )
    verb.add_argument(
        "--imitate",
        action="store_true",
        help="learn the teacher's hidden states, too, word by word; the answers then take 400 "
        "bytes a word",
    )
    verb.add_argument(
        "--seed", type=int, default=_DEFAULT.seed, metavar="N", help="default: %(default)s"
    )


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Return the recipe that parsed options describe.

    Raises:
        ValueError: texts that cannot be read as `DATA`.
    """
    recipe = Recipe(
        train=tuple(map(Source.parse, options.train)),
        taught=tuple(map(Source.parse, options.taught)),
        teacher=options.teacher,
        imitate=options.imitate,
        unlabelled=tuple(map(Source.parse, options.unlabelled)),
        evaluate=tuple(map(Source.parse, options.evaluate)),
        labels=tuple(options.labels),
        base=options.base,
        seed=options.seed,
    )
    parts: dict[str, Shape | Stage] = {part: getattr(recipe, part) for part in _PARTS}
    for option in (option for options in _GROUPS.values() for option in options):
        value = getattr(options, option.flag[2:].replace("-", "_"))
        parts[option.part] = replace(parts[option.part], **{option.name: value})
    return replace(recipe, **parts)


def command(recipe: Recipe) -> str:
    """Return the command of a recipe, every value stated, local paths shortened.

    Options that have no effect (a shape beside --base, pretraining without texts) are left out.
    """
    lines = ["lrputils train --out DIR"]
    for flag, sources in (
        ("--unlabelled", recipe.unlabelled),
        ("--train", recipe.train),
        ("--taught", recipe.taught),
        ("--evaluate", recipe.evaluate),
        ("--labels", recipe.labels),
    ):
        if sources or flag == "--evaluate":
            lines.append(shlex.join([flag, *map(str, sources)]))
    for flag, model in (("--base", recipe.base), ("--teacher", recipe.teacher)):
        if model is not None:
            lines.append(shlex.join([flag, str(Source(model))]))
    if recipe.imitate:
        lines.append("--imitate")
    left_out = {"shape"} if recipe.base is not None else set()
    left_out |= set() if recipe.unlabelled else {"pretraining"}
    left_out |= set() if recipe.shallow.layers is not None else {"shallow"}
    for options in _GROUPS.values():
        values = [(o.flag, getattr(getattr(recipe, o.part), o.name)) for o in options]
        if options[0].part not in left_out:
            lines.append(" ".join(f"{flag} {v}" for flag, v in values if v is not None))
    lines.append(f"--seed {recipe.seed}")
    return " \\\n  ".join(lines)
