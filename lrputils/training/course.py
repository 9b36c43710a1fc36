"""The course of a training: vocabulary, vectors, pretraining, teaching, fine-tuning, in turn.

Each part is a folder below the training's, there only when whole, so that the same course goes on
where it was ended.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lrputils.models import Classifier
from lrputils.training import network
from lrputils.training.batches import Batches, MaskedBatches, Special
from lrputils.training.corpus import Corpus, Encoded, encode, learn_vocabulary
from lrputils.training.measure import rightly
from lrputils.training.pupil import Pupil
from lrputils.training.recipe import STAGES, Conditions, Recipe, Stage
from lrputils.training.stage import run_stage
from lrputils.training.teaching import Answers, ask
from lrputils.training.vectors import neighbour_vectors

_FOLDERS = {"pretraining": "pretrained", "shallow": "shallow", "finetuning": "fine-tuned"}
RESULT = "result.json"  # beside a network's weights: what its stage reported


@dataclass(frozen=True)
class Course:
    """One training's parts; each is made unless it is there.

    Attributes:
        work: the folder that holds them.
        recipe: what to train, how.
        corpus: the recipe's texts.
        base: the model to start from, if there is one.
        teacher: who labels `corpus.taught`, if anybody.
        conditions: device, checkpoints, progress.
    """

    work: Path
    recipe: Recipe
    corpus: Corpus
    base: network.Base | None
    teacher: Classifier | None
    conditions: Conditions

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the base model's tokenizer, or one learned from all texts to learn from."""
        if self.base is not None:
            return network.load_tokenizer(self.base.folder)

        def write(folder: Path) -> None:
            # A text that stands in several sets counts once.
            sets = (*self.corpus.train, *self.corpus.taught, *self.corpus.unlabelled)
            texts = list(dict.fromkeys(text for _, texts in sets for text in texts))
            shape = self.recipe.shape
            learn_vocabulary(texts, shape.vocabulary, shape.positions).save_pretrained(folder)

        return network.load_tokenizer(_once(self.work / "vocabulary", write))

    def networks(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Path]:
        """Return the folder of each stage's network in order, the last in half precision."""
        recipe, folders = self.recipe, {}
        start = self.base.folder if self.base else self._new(tokenizer)
        if "pretraining" in recipe.stages():
            folders["pretraining"] = start = self._pretrained(start, tokenizer)
        answers = self._answers()
        for name in recipe.stages():
            if name != "pretraining":
                folders[name] = start = self._finetuned(name, start, answers, tokenizer)
        return folders

    def labelled(
        self, tokenizer: PreTrainedTokenizerBase, answers: Answers | None, max_length: int
    ) -> Encoded:
        """Return all that a classifier learns from, with what it should answer."""
        corpus = self.corpus
        texts = [text for _, texts in (*corpus.train, *corpus.taught) for text in texts]
        classes = np.concatenate([corpus.classes(texts) for _, texts in corpus.train])
        targets = np.eye(len(corpus.names), dtype=np.float32)[classes]
        if answers is not None:
            targets = np.concatenate([targets, answers.classes])
        encoded = encode(tokenizer, texts, max_length=max_length, targets=targets)
        if answers is None or answers.states is None:
            return encoded
        starts = np.concatenate([np.zeros_like(classes), answers.starts])
        return replace(encoded, states=answers.states, state_starts=starts)

    def _answers(self) -> Answers | None:
        if self.teacher is None:
            return None
        return ask(
            self.teacher,
            [text for _, texts in self.corpus.taught for text in texts],
            self.work / "taught",
            max_length=self.recipe.finetuning.max_length,
            states=self.recipe.imitate,
            quiet=self.conditions.quiet,
        )

    def _new(self, tokenizer: PreTrainedTokenizerBase) -> Path | BertConfig:
        """Return a network that has learned nothing but, from unlabelled texts, vectors."""
        recipe = self.recipe
        layers = recipe.shallow.layers or recipe.shape.layers
        config = network.new_config(replace(recipe.shape, layers=layers), len(tokenizer))

        def write(folder: Path) -> None:
            texts = encode(tokenizer, self._unlabelled(), max_length=recipe.shape.positions)
            vectors = neighbour_vectors(texts, len(tokenizer), recipe.shape.hidden, recipe.seed)
            model = network.masked_language_model(config, recipe.seed, 0.0, vectors)
            model.save_pretrained(folder)

        return _once(self.work / "new", write) if recipe.unlabelled else config

    def _unlabelled(self) -> list[str]:
        return [text for _, texts in self.corpus.unlabelled for text in texts]

    def _pretrained(self, start: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
        stage, seed = self.recipe.pretraining, self.recipe.seed

        def write(folder: Path) -> None:
            encoded = encode(tokenizer, self._unlabelled(), max_length=stage.max_length)
            batches = MaskedBatches(encoded, stage, Special.of(tokenizer), seed)
            model = network.masked_language_model(start, seed, stage.dropout)
            self._run("pretraining", model, batches, stage, folder)

        return _once(self.work / _FOLDERS["pretraining"], write)

    def _finetuned(
        self,
        name: str,
        start: Path | BertConfig,
        answers: Answers | None,
        tokenizer: PreTrainedTokenizerBase,
    ) -> Path:
        stage = self.recipe.stages()[name]

        def write(folder: Path) -> None:
            encoded = self.labelled(tokenizer, answers, stage.max_length)
            batches = Batches(encoded, stage, Special.of(tokenizer), self.recipe.seed)
            model = self._classifier(name, start, stage.dropout)
            matched = (0, 0) if encoded.states is None else encoded.states.shape[1:]
            pupil = Pupil(model, *matched)
            self._run(
                name,
                pupil,
                batches,
                stage,
                folder,
                evaluate=lambda: self._accuracies(Classifier(model, tokenizer, "in training")),
            )

        return _once(self.work / _FOLDERS[name], write)

    def _classifier(
        self, name: str, start: Path | BertConfig, dropout: float
    ) -> BertForSequenceClassification:
        if name == "finetuning" and self.recipe.shallow.layers is not None:
            return network.deepened(start, self.recipe.shape.layers, dropout)
        return network.classifier(start, self.corpus.names, self.recipe.seed, dropout)

    def _run(
        self,
        name: str,
        model: PreTrainedModel | Pupil,
        batches: Batches,
        stage: Stage,
        folder: Path,
        **options: Any,
    ) -> None:
        result = run_stage(
            STAGES[name],
            model,
            batches,
            stage,
            self.work / f"{name}-checkpoints",
            seed=self.recipe.seed,
            conditions=self.conditions,
            **options,
        )
        trained = model.classifier if isinstance(model, Pupil) else model
        (trained.half() if name == "finetuning" else trained).save_pretrained(folder)
        (folder / RESULT).write_text(json.dumps(result))

    def _accuracies(self, classifier: Classifier) -> dict[str, float]:
        return {
            name: float(rightly(classifier, texts, self.corpus.classes(texts)).mean())
            for name, texts in self.corpus.evaluate
        }


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, written by `write` unless it is there; it is there only when whole."""
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        partial.replace(folder)
    return folder
