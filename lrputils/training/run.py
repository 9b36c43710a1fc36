"""A whole training: from texts to a folder that `load_classifier` takes.

Everything on the way is kept in `training/` inside the folder, so that the same call goes on where
an earlier one was ended. A part is there once it is whole; at the end `training/` is removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lrputils.models import Classifier, load_classifier, quietly
from lrputils.training import card, network
from lrputils.training.batches import Batches, MaskedBatches, Special
from lrputils.training.corpus import Corpus, Encoded, encode, learn_vocabulary, load_corpus
from lrputils.training.measure import attention_matters, rightly
from lrputils.training.recipe import STAGES, Conditions, Recipe, Stage
from lrputils.training.stage import run_stage
from lrputils.training.teaching import find_teacher, taught_classes

_WORK = "training"
_RECIPE = "recipe.json"
_RESULT = "result.json"


def train(recipe: Recipe, out: str | Path, conditions: Conditions | None = None) -> Path:
    """Train a BERT classifier and write it to `out`, with its tokenizer and its card.

    Vocabulary (from all texts but those to measure on), pretraining where the recipe has unlabelled
    texts, the teacher's answers where it has a teacher, fine-tuning, measurement. Weights are
    stored in half precision; the accuracies in the card are of these.

    Args:
        recipe: what to train, on what, how.
        out: a new folder, an empty one, or the one of the same recipe that was interrupted.
        conditions: device, checkpoints, progress.

    Raises:
        ValueError: a recipe that contradicts itself or its texts, a folder that holds another
            training, or a loss that is no longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts, a base model or a teacher that are not there.
        ImportError: `accelerate`, which the Trainer needs, is not installed.
    """
    recipe, out = recipe.checked(), Path(out).expanduser()
    conditions = conditions or Conditions()
    _check_free(out)
    if find_spec("accelerate") is None:
        raise ImportError("training needs the package `accelerate`: pip install 'lrputils[train]'")
    base = network.find_base(recipe.base) if recipe.base else None
    if base:
        network.check_positions(base, recipe)
    corpus = load_corpus(recipe)
    teacher = find_teacher(recipe.teacher, corpus.names, conditions.device)
    work = out / _WORK
    _claim(work, recipe, corpus, base, teacher)
    with quietly():
        tokenizer = _tokenizer(work, recipe, corpus, base)
        stages = _Stages(work, recipe, corpus, tokenizer, conditions)
        folders = _trained(stages, base, teacher)
        _export(folders["finetuning"], tokenizer, out)
        trained = load_classifier(out, device=conditions.device)
        measured = _measure(trained, corpus, conditions.uniform_attention)
    results = {name: _result(folder) for name, folder in folders.items()}
    card.write(out, trained, recipe, corpus, base, teacher, results, measured)
    work.replace(done := work.with_name(f"{_WORK}.done"))  # half removed, it would be begun again
    shutil.rmtree(done)
    return out


def _trained(
    stages: _Stages, base: network.Base | None, teacher: Classifier | None
) -> dict[str, Path]:
    """Return the folder of each stage's network, the last one's in half precision."""
    recipe, folders = stages.recipe, {}
    first = replace(recipe.shape, layers=recipe.shallow.layers or recipe.shape.layers)
    start = base.folder if base else network.new_config(first, len(stages.tokenizer))
    if recipe.unlabelled:
        folders["pretraining"] = start = stages.pretrain(start)
    encoded = stages.labelled(teacher)
    if recipe.shallow.layers is not None:
        folders["shallow"] = start = stages.finetune_shallow(start, encoded)
    folders["finetuning"] = stages.finetune(start, encoded)
    return folders


def _check_free(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / _WORK / _RECIPE).is_file():
        finished = (out / "config.json").is_file()
        what = "already holds a model" if finished else "holds something else"
        raise FileExistsError(f"--out {out} {what}: name a new folder, or remove this one")


def _claim(
    work: Path,
    recipe: Recipe,
    corpus: Corpus,
    base: network.Base | None,
    teacher: Classifier | None,
) -> None:
    """Write down whose folder this is; refuse one of another recipe or of other texts."""
    new = _flat(asdict(recipe)) | {
        "base identity": base and base.identity,
        "teacher identity": teacher and teacher.identity,
    }
    new |= {f"{e['role']} texts {e['name']!r}": e["identity"] for e in corpus.identities()}
    new = json.loads(json.dumps(new, default=str))
    path = work / _RECIPE
    whole = [part for part in work.glob("*") if part.is_dir() and part.suffix != ".partial"]
    if path.is_file() and whole:
        old = json.loads(path.read_text())
        for key in [*new, *old]:
            if new.get(key) != old.get(key):
                raise ValueError(
                    f"--out {work.parent} holds a training begun with {key} = {old.get(key)}, now "
                    f"it is {new.get(key)}: repeat the old command, or name a new folder"
                )
        return
    work.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(new, indent=1))
    partial.replace(path)


def _flat(values: dict[str, Any], start: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{start}{key}.") if isinstance(value, dict) else {start + key: value}
    return flat


def _once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, written by `write` unless it is there; it is there only when whole."""
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        partial.replace(folder)
    return folder


def _tokenizer(
    work: Path, recipe: Recipe, corpus: Corpus, base: network.Base | None
) -> PreTrainedTokenizerBase:
    if base is not None:
        return network.load_tokenizer(base.folder)

    def write(folder: Path) -> None:
        # A text that stands in several sets counts once.
        sets = (*corpus.train, *corpus.taught, *corpus.unlabelled)
        texts = list(dict.fromkeys(text for _, texts in sets for text in texts))
        shape = recipe.shape
        learn_vocabulary(texts, shape.vocabulary, shape.positions).save_pretrained(folder)

    return network.load_tokenizer(_once(work / "vocabulary", write))


@dataclass(frozen=True)
class _Stages:
    """The stages of one training; each gives the folder of its network, trained unless there."""

    work: Path
    recipe: Recipe
    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    conditions: Conditions

    def pretrain(self, start: Path | BertConfig) -> Path:
        stage = self.recipe.stages()["pretraining"]

        def write(folder: Path) -> None:
            texts = [text for _, texts in self.corpus.unlabelled for text in texts]
            encoded = encode(self.tokenizer, texts, max_length=stage.max_length)
            batches = MaskedBatches(encoded, stage, Special.of(self.tokenizer), self.recipe.seed)
            model = network.masked_language_model(start, self.recipe.seed, stage.dropout)
            self._run("pretraining", model, batches, stage, folder)

        return _once(self.work / "pretrained", write)

    def finetune_shallow(self, start: Path | BertConfig, encoded: Encoded) -> Path:
        def write(folder: Path) -> None:
            self._classify("shallow", self._classifier(start, "shallow"), encoded, folder)

        return _once(self.work / "shallow", write)

    def finetune(self, start: Path | BertConfig, encoded: Encoded) -> Path:
        def write(folder: Path) -> None:
            if self.recipe.shallow.layers is None:
                model = self._classifier(start, "finetuning")
            else:
                layers, dropout = self.recipe.shape.layers, self.recipe.finetuning.dropout
                model = network.deepened(start, layers, dropout)
            self._classify("finetuning", model, encoded, folder)

        return _once(self.work / "fine-tuned", write)

    def labelled(self, teacher: Classifier | None) -> Encoded:
        """Return all that the classifier learns from, encoded, with what it should answer."""
        names, corpus, most = self.corpus.names, self.corpus, self.recipe.finetuning.max_length
        texts = [text for _, texts in (*corpus.train, *corpus.taught) for text in texts]
        classes = np.concatenate([corpus.classes(texts) for _, texts in corpus.train])
        targets = np.eye(len(names), dtype=np.float32)[classes]
        if teacher is not None:
            taught = taught_classes(
                teacher,
                texts[len(targets) :],
                self.work / "taught",
                max_length=most,
                quiet=self.conditions.quiet,
            )
            targets = np.concatenate([targets, taught])
        return encode(self.tokenizer, texts, max_length=most, targets=targets)

    def _classifier(self, start: Path | BertConfig, name: str) -> BertForSequenceClassification:
        dropout = self.recipe.stages()[name].dropout
        return network.classifier(start, self.corpus.names, self.recipe.seed, dropout)

    def _classify(
        self, name: str, model: BertForSequenceClassification, encoded: Encoded, folder: Path
    ) -> None:
        stage = self.recipe.stages()[name]
        classifier = Classifier(model, self.tokenizer, "in training")
        batches = Batches(encoded, stage, Special.of(self.tokenizer), self.recipe.seed)
        self._run(
            name,
            model,
            batches,
            stage,
            folder,
            loss=network.class_loss,
            evaluate=lambda: _accuracies(classifier, self.corpus),
        )

    def _run(
        self,
        name: str,
        model: PreTrainedModel,
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
        last = name == list(self.recipe.stages())[-1]
        (model.half() if last else model).save_pretrained(folder)
        (folder / _RESULT).write_text(json.dumps(result))


def _accuracies(classifier: Classifier, corpus: Corpus) -> dict[str, float]:
    return {
        name: float(rightly(classifier, texts, corpus.classes(texts)).mean())
        for name, texts in corpus.evaluate
    }


def _result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _RESULT).read_text())


def _export(folder: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    for path in folder.iterdir():
        if path.name != _RESULT:
            partial = out / f"{path.name}.partial"
            shutil.copyfile(path, partial)
            os.replace(partial, out / path.name)
    tokenizer.save_pretrained(out)


def _measure(classifier: Classifier, corpus: Corpus, uniform: bool) -> dict[str, Any]:
    return {
        name: attention_matters(classifier, texts, classes=corpus.classes(texts), uniform=uniform)
        for name, texts in corpus.evaluate
    }
