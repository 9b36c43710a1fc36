"""Make the classifier that comes with `lrputils`: `python -m recipes.reviewer --help`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import BertForSequenceClassification as Bert
from transformers import PreTrainedTokenizerBase

import lrputils as lrp
from lrputils.model.classifier import quietly
from lrputils.runs.folders import claimed
from lrputils.runs.options import shortened
from lrputils.study.uniform_attention import correct
from lrputils.training import card
from lrputils.training.corpus import encode, row
from lrputils.training.recipe import Recipe, add_conditions
from lrputils.training.run import (
    bert_config,
    check_free,
    classifier,
    export,
    learned_tokenizer,
    staged,
)
from lrputils.training.trainer import fit
from recipes.reviewer import teacher as teaching
from recipes.reviewer.clock import Clock
from recipes.reviewer.layers import deepened
from recipes.reviewer.pupil import Collator, Pupil
from recipes.reviewer.sentences import sentences_of
from recipes.reviewer.vectors import neighbour_vectors

CLASSES = "negative", "positive"
# Of embeddings made from vectors. From smaller ones, steps of the usual size would soon lead away.
VECTOR_SCALE = 0.3


class Stage(NamedTuple):
    """How long and by which steps a network learns.

    Attributes:
        name: also of its folder.
        max_length: tokens a text.
        minutes: the stage ends after this time, if its epochs take longer.
        epochs: passes over the texts.
        batch: texts a batch.
        learning_rate: the highest.
    """

    name: str
    max_length: int
    minutes: float
    epochs: float
    batch: int
    learning_rate: float


class Plan(NamedTuple):
    """What is built, from how much, in how long.

    Attributes:
        shape: of the network; its layers are those at the end.
        shallow_layers: those of the first stage.
        sentences: of the unlabelled texts, that the teacher answers for, at most.
        first: the stage with few layers.
        second: the stage with all layers.
    """

    shape: Recipe
    shallow_layers: int
    sentences: int
    first: Stage
    second: Stage


FULL = Plan(
    Recipe("", vocabulary=8192, layers=12, hidden=128, heads=2, dropout=0.0, max_length=512),
    6,
    262_144,
    Stage("few layers", 256, 34, 3, 64, 8e-4),
    Stage("all layers", 512, 34, 2, 64, 4e-4),
)
SHORT = Plan(
    Recipe("", vocabulary=600, layers=4, hidden=32, heads=2, dropout=0.0, max_length=128),
    2,
    120,
    Stage("few layers", 64, 34, 2, 16, 1e-3),
    Stage("all layers", 128, 34, 1, 16, 5e-4),
)


class Sets(NamedTuple):
    """The texts, by what they are for."""

    unlabelled: Sequence[lrp.Texts]
    training: Sequence[lrp.Texts]
    divided: lrp.Texts  # into sentences, for the teacher
    taught: Sequence[lrp.Texts]  # whole, for the teacher
    evaluate: Sequence[lrp.Texts]

    def rows(self) -> list[dict[str, Any]]:
        """Return role, name, number of texts and identity of each set."""
        sets = self._replace(divided=[self.divided])._asdict().items()
        return [row(role, texts) for role, several in sets for texts in several]


def load_sets(data: Path | None) -> Sets:
    """Load SST-2 and IMDB from `data`, or if it is None the package's own reviews."""
    short, long = lrp.load_texts("reviews"), lrp.load_texts("reviews-long")
    if data is None:
        return Sets([long], [short], long, [short], [long])

    def texts(path: str, name: str, **options: int) -> lrp.Texts:
        return replace(lrp.load_texts(data / path, **options), name=name)

    sst_train = texts("sst2/train.parquet", "SST-2 training")
    imdb_train = texts("imdb/train.parquet", "IMDB training")
    unlabelled = texts("imdb/unsupervised.parquet", "IMDB unlabelled")
    sst_test = texts("sst2/validation.parquet", "SST-2")
    imdb_test = texts("imdb/test.parquet", "IMDB", limit=2000, seed=0)
    return Sets(
        [unlabelled, imdb_train, sst_train],
        [sst_train, imdb_train],
        unlabelled,
        [sst_train],
        [sst_test, imdb_test, short, long],
    )


def make(
    out: Path,
    sets: Sets,
    teacher: lrp.Classifier,
    plan: Plan,
    command: str,
    device: str = "auto",
    quiet: bool = False,
) -> Path:
    """Make the classifier in `out`, going on where an earlier call was killed."""
    check_free(out)
    facts = {"plan": plan._replace(shape=vars(plan.shape)), "teacher": teacher.identity}
    with quietly(), claimed(out, facts | {"texts": sets.rows()}, "training") as work:
        texts = [text for texts in (*sets.unlabelled, *sets.training) for text in texts]
        tokenizer = learned_tokenizer(work, plan.shape, texts)
        teaching.check(teacher, tokenizer, CLASSES)
        asked = sentences_of(sets.divided, 4, 28, plan.sentences, 0)
        asked += [text for texts in sets.taught for text in texts]
        answers = teaching.ask(teacher, asked, work / "taught", plan.shape.max_length, quiet)

        def learn(stage: Stage, begin: Callable[[], Bert]) -> tuple[Bert, dict]:
            folder = work / stage.name.replace(" ", "-")

            def fitted() -> tuple[Bert, dict]:
                model = begin()
                learned = _rows(tokenizer, sets.training, asked, answers, stage.max_length)
                result = fit(
                    Pupil(model, *learned[-1]["states"].shape[1:]),
                    learned,
                    Collator(tokenizer),
                    folder.with_suffix(".checkpoints"),
                    epochs=stage.epochs,
                    batch=stage.batch,
                    learning_rate=stage.learning_rate,
                    device=device,
                    quiet=quiet,
                    callbacks=[Clock(stage.minutes)],
                )
                return model, result

            result = staged(folder, fitted)
            return Bert.from_pretrained(folder), result

        shallow, first = learn(plan.first, lambda: _begin(tokenizer, sets, plan))
        deep, second = learn(plan.second, lambda: deepened(shallow, plan.shape.layers))
        export(deep, tokenizer, out)
        stages = {plan.first.name: first, plan.second.name: second}
        _card(out, sets, teacher, stages, device, command)
    return out


def _begin(tokenizer: PreTrainedTokenizerBase, sets: Sets, plan: Plan) -> Bert:
    """Return a network of few layers whose embeddings are vectors of neighbours."""
    config = bert_config(replace(plan.shape, layers=plan.shallow_layers), len(tokenizer))
    model = classifier(config, CLASSES, 0)
    texts = [text for texts in sets.unlabelled for text in texts]
    pieces = [row["input_ids"][1:-1] for row in encode(tokenizer, texts, plan.shape.max_length)]
    vectors = neighbour_vectors(pieces, len(tokenizer), config.hidden_size, 0)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.copy_(VECTOR_SCALE * vectors)
    return model


def _rows(
    tokenizer: PreTrainedTokenizerBase,
    labelled: Sequence[lrp.Texts],
    asked: Sequence[str],
    answers: teaching.Answers,
    max_length: int,
) -> list[dict[str, Any]]:
    """Return rows for `Collator`: the labelled texts, and those that the teacher answered for."""
    texts = [text for texts in labelled for text in texts]
    numbers = [label for texts in labelled for label in texts.labels]
    targets = np.concatenate([np.eye(len(CLASSES), dtype=np.float32)[numbers], answers.classes])
    unmatched = answers.states[0][:0]
    states = [unmatched] * len(texts) + answers.states
    everything, rows = [*texts, *asked], []
    for start in range(0, len(targets), 1000):
        part = everything[start : start + 1000]
        encoding = tokenizer(part, max_length=max_length, truncation=True)
        for i, ids in enumerate(encoding["input_ids"]):
            number = start + i
            starts = teaching.word_starts(encoding, i) if len(states[number]) else []
            rows.append(
                {
                    "input_ids": np.array(ids, dtype=np.int32),
                    "label": targets[number],
                    "starts": np.array(starts, dtype=np.int32),
                    "states": states[number],
                }
            )
    return rows


def _card(
    out: Path,
    sets: Sets,
    teacher: lrp.Classifier,
    stages: Mapping[str, Any],
    device: str,
    command: str,
) -> None:
    clf = lrp.load_classifier(out, device=device)
    right = {t.name: correct(clf, t, np.array(t.labels)) for t in sets.evaluate}
    rows = []
    for texts in sets.evaluate:
        matters = lrp.attention_matters(clf, texts)
        rows.append(
            {
                "set": texts.name,
                "uniform attention": card.percent(matters.uniform),
                "fall": card.percent(matters.fall, " points"),
            }
            | {
                f"layers {depth.start + 1} to {depth.stop}": card.percent(fall, " points")
                for depth, fall in matters.fall_by_depth.items()
            }
        )
    taught = {"role": "teacher", "set": teacher.name, "texts": "–", "identity": teacher.identity}
    path = card.write(out, clf, stages, [*sets.rows(), taught], right, command)
    attention = (
        "\n## Attention that matters\n\n"
        "Accuracy when every attention matrix is replaced by the uniform one, how many points it "
        "falls (paired by text), and how many it falls when only some layers attend evenly. A "
        "classifier that loses nothing reads a bag of words.\n\n" + card.table(rows) + "\n"
    )
    with path.open("a", encoding="utf-8") as file:
        file.write(attention)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m recipes.reviewer", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--data", type=Path, metavar="DIR", help="holds sst2/ and imdb/")
    parser.add_argument("--teacher", metavar="MODEL", help="default: the package's own classifier")
    parser.add_argument("--short", action="store_true", help="a miniature on the book's reviews")
    add_conditions(parser)
    options = parser.parse_args(arguments)
    if bool(options.data) == options.short:
        parser.error("name --data with SST-2 and IMDB, or take --short, which needs none")
    command = "python -m recipes.reviewer --out DIR" + (" --short" if options.short else "")
    for name in ("data", "teacher"):
        if value := getattr(options, name):
            command += f" --{name} {shortened(str(value))}"
    print(
        make(
            options.out,
            load_sets(options.data),
            lrp.load_classifier(options.teacher, device=options.device),
            SHORT if options.short else FULL,
            command,
            options.device,
            options.quiet,
        )
    )


if __name__ == "__main__":
    main()
