"""Make the classifier that comes with `lrputils`: `python -m recipes.reviewer --help`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers import BertForSequenceClassification as Bert
from transformers import PreTrainedTokenizerBase

import lrputils as lrp
from lrputils.model.classifier import quietly
from lrputils.runs.folders import claimed
from lrputils.runs.options import run_alone
from lrputils.study.attention import correct
from lrputils.training import card
from lrputils.training.corpus import row
from lrputils.training.recipe import Recipe
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
from recipes.reviewer.pupil import Collator, Pupil, deepened
from recipes.reviewer.vectors import neighbour_vectors

CLASSES = "negative", "positive"
# Of embeddings made from vectors. From smaller ones, steps of the usual size would soon lead away.
VECTOR_SCALE = 0.3

Sets = Mapping[str, Sequence[lrp.Texts]]


class Plan(NamedTuple):
    """What is built, from how much, by which steps.

    Attributes:
        shape: of the network; its layers are those at the end.
        shallow_layers: those of the first stage.
        sentences: of the unlabelled texts, that the teacher answers for, at most.
        stages: name → `max_length`, the tokens of a text, and `epochs`, `batch` and
            `learning_rate` of `fit`; the first with few layers, the second with all.
    """

    shape: Recipe
    shallow_layers: int
    sentences: int
    stages: dict[str, dict[str, Any]]


FULL = Plan(
    Recipe("", vocabulary=8192, layers=12, hidden=128, heads=2, dropout=0.0, max_length=512),
    6,
    262_144,
    {
        "few layers": {"max_length": 256, "epochs": 1, "batch": 64, "learning_rate": 8e-4},
        "all layers": {"max_length": 512, "epochs": 0.5, "batch": 64, "learning_rate": 4e-4},
    },
)
SHORT = Plan(
    Recipe("", vocabulary=600, layers=4, hidden=32, heads=2, dropout=0.0, max_length=128),
    2,
    120,
    {
        "few layers": {"max_length": 64, "epochs": 2, "batch": 16, "learning_rate": 1e-3},
        "all layers": {"max_length": 128, "epochs": 1, "batch": 16, "learning_rate": 5e-4},
    },
)


def load_sets(data: str | None) -> Sets:
    """Load SST-2 and IMDB from a folder, or if it is None the package's own reviews, by use.

    The teacher answers for the sentences of the "divided" texts, and for the "taught" as a whole.
    """
    short, long = lrp.load_texts("reviews"), lrp.load_texts("reviews-long")
    names = ("unlabelled", "training", "divided", "taught", "evaluate")
    if data is None:
        return dict(zip(names, ([long], [short], [long], [short], [long]), strict=True))

    def texts(path: str, name: str, **options: int) -> lrp.Texts:
        return replace(lrp.load_texts(Path(data) / path, **options), name=name)

    sst_train = texts("sst2/train.parquet", "SST-2 training")
    imdb_train = texts("imdb/train.parquet", "IMDB training")
    unlabelled = texts("imdb/unsupervised.parquet", "IMDB unlabelled")
    sst_test = texts("sst2/validation.parquet", "SST-2")
    imdb_test = texts("imdb/test.parquet", "IMDB", limit=2000, seed=0)
    training, test = [sst_train, imdb_train], [sst_test, imdb_test, short, long]
    every = ([unlabelled, imdb_train, sst_train], training, [unlabelled], [sst_train], test)
    return dict(zip(names, every, strict=True))


def make(
    *,
    out: Path,
    data: str | None = None,
    teacher: str | None = None,
    short: bool = False,
    device: Literal["auto", "cpu"] = "auto",
    quiet: bool = False,
    command: str = "",
) -> Path:
    """Make the classifier that comes with `lrputils`, going on where an earlier call was killed.

    Args:
        out: a new folder
        data (DIR): holds sst2/ and imdb/
        teacher (MODEL): a lower-cased BERT, which divides texts into the same words (default: the
            package's own classifier)
        short: a miniature on the book's reviews
        device: auto takes a GPU if there is one
        quiet: no progress
    """
    if (data is not None) == short:
        raise ValueError("name --data with SST-2 and IMDB, or take --short, which needs none")
    check_free(out)
    plan, sets = SHORT if short else FULL, load_sets(data)
    known = lrp.load_classifier(teacher, device=device)
    told = [row(use, texts) for use, several in sets.items() for texts in several]
    facts = {"plan": plan._replace(shape=vars(plan.shape)), "teacher": known.identity}
    with quietly(), claimed(out, facts | {"texts": told}, "training") as work:
        tokenizer = learned_tokenizer(work, plan.shape, _texts(sets, "unlabelled", "training"))
        if known.labels != CLASSES:
            raise ValueError(f"{known.name!r} tells {[*known.labels]} apart, not {[*CLASSES]}")
        divided = _texts(sets, "divided")
        asked = teaching.sentences_of(divided, 4, 28, plan.sentences, 0) + _texts(sets, "taught")
        answers = teaching.ask(known, asked, work / "taught", plan.shape.max_length, quiet)

        def learn(name: str, begin: Callable[[], Bert]) -> tuple[Bert, dict]:
            folder, how = work / name.replace(" ", "-"), dict(plan.stages[name])

            def fitted() -> tuple[Bert, dict]:
                model = begin()
                rows = _rows(tokenizer, sets["training"], asked, answers, how.pop("max_length"))
                pupil = Pupil(model, *rows[-1]["states"].shape[1:])
                place = folder.with_suffix(".checkpoints")
                return model, fit(
                    pupil, rows, Collator(tokenizer), place, device=device, quiet=quiet, **how
                )

            result = staged(folder, fitted)
            return Bert.from_pretrained(folder), result

        first, second = plan.stages
        shallow, few = learn(first, lambda: _begin(tokenizer, sets, plan))
        deep, every = learn(second, lambda: deepened(shallow, plan.shape.layers))
        export(deep, tokenizer, out)
        told.append(
            {"role": "teacher", "set": known.name, "texts": "–", "identity": known.identity}
        )
        clf = lrp.load_classifier(out, device=device)
        _card(out, clf, sets["evaluate"], {first: few, second: every}, told, command)
    return out


def _texts(sets: Sets, *uses: str) -> list[str]:
    return [text for use in uses for texts in sets[use] for text in texts]


def _begin(tokenizer: PreTrainedTokenizerBase, sets: Sets, plan: Plan) -> Bert:
    """Return a network of few layers whose embeddings are vectors of neighbours."""
    config = bert_config(replace(plan.shape, layers=plan.shallow_layers), len(tokenizer))
    model, texts = classifier(config, CLASSES, 0), _texts(sets, "unlabelled")
    encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False)
    pieces = [np.array(ids, dtype=np.int32) for ids in encoded["input_ids"]]
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
    clf: lrp.Classifier,
    evaluated: Sequence[lrp.Texts],
    stages: Mapping[str, Any],
    told: Sequence[Mapping[str, Any]],
    command: str,
) -> None:
    """Write the card, and below it what uniform attention costs."""
    right = {texts.name: correct(clf, texts, np.array(texts.labels)) for texts in evaluated}
    path, rows = card.write(out, clf, stages, told, right, command), []
    for texts in evaluated:
        matters = lrp.attention_matters(clf, texts)
        del matters["accuracy"]
        uniform = card.percent(matters.pop("uniform"))
        points = {name: card.percent(fall, " points") for name, fall in matters.items()}
        rows.append({"set": texts.name, "uniform attention": uniform, **points})
    attention = (
        "\n## Attention that matters\n\n"
        "Accuracy when every attention matrix is replaced by the uniform one, how many points it "
        "falls (paired by text), and how many it falls when only some layers attend evenly. A "
        "classifier that loses nothing reads a bag of words.\n\n" + card.table(rows) + "\n"
    )
    path.write_text(path.read_text(encoding="utf-8") + attention, encoding="utf-8")


if __name__ == "__main__":
    print(run_alone(make, prog="python -m recipes.reviewer"))
