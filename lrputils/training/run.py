"""A whole training: from texts to a folder that `load_classifier` takes.

Everything on the way is kept in `training/` inside the folder, so that the same call goes on where
an earlier one was ended. A part is there once it is whole; at the end `training/` is removed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import BertConfig, PreTrainedTokenizerBase

from lrputils.models import Classifier, load_classifier, quietly
from lrputils.training import card, network
from lrputils.training.batches import Batches, MaskedBatches, Special
from lrputils.training.corpus import Corpus, encode, learn_vocabulary, load_corpus
from lrputils.training.measure import attention_matters, rightly
from lrputils.training.recipe import Conditions, Recipe
from lrputils.training.stage import run_stage

_WORK = "training"
_RECIPE = "recipe.json"
_RESULT = "result.json"


def train(recipe: Recipe, out: str | Path, conditions: Conditions | None = None) -> Path:
    """Train a BERT classifier and write it to `out`, with its tokenizer and its card.

    Vocabulary (from all training and unlabelled texts), pretraining where the recipe has unlabelled
    texts, fine-tuning, measurement. Weights are stored in half precision; the accuracies in the
    card are of these.

    Args:
        recipe: what to train, on what, how.
        out: a new folder, an empty one, or the one of the same recipe that was interrupted.
        conditions: device, checkpoints, progress.

    Raises:
        ValueError: a recipe that contradicts itself or its texts, a folder that holds another
            training, or a loss that is no longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts or a base model that are not there.
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
    work = out / _WORK
    _claim(work, recipe, corpus, base)
    with quietly():
        tokenizer = _tokenizer(work, recipe, corpus, base)
        start = base.folder if base else network.new_config(recipe.shape, len(tokenizer))
        stages = {}
        if recipe.unlabelled:
            start = _pretrain(work, recipe, corpus, tokenizer, start, conditions)
            stages["pretraining"] = _result(start)
        tuned = _finetune(work, recipe, corpus, tokenizer, start, conditions)
        stages["fine-tuning"] = _result(tuned)
        _export(tuned, tokenizer, out)
        trained = load_classifier(out, device=conditions.device)
        measured = _measure(trained, corpus, conditions.uniform_attention)
    card.write(out, trained, recipe, corpus, base, stages, measured)
    work.replace(done := work.with_name(f"{_WORK}.done"))  # half removed, it would be begun again
    shutil.rmtree(done)
    return out


def _check_free(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / _WORK / _RECIPE).is_file():
        finished = (out / "config.json").is_file()
        what = "already holds a model" if finished else "holds something else"
        raise FileExistsError(f"--out {out} {what}: name a new folder, or remove this one")


def _claim(work: Path, recipe: Recipe, corpus: Corpus, base: network.Base | None) -> None:
    """Write down whose folder this is; refuse one of another recipe or of other texts."""
    new = _flat(asdict(recipe)) | {"base identity": base and base.identity}
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
        sets = (*corpus.train, *corpus.unlabelled)
        texts = list(dict.fromkeys(text for _, texts in sets for text in texts))
        shape = recipe.shape
        learn_vocabulary(texts, shape.vocabulary, shape.positions).save_pretrained(folder)

    return network.load_tokenizer(_once(work / "vocabulary", write))


def _pretrain(
    work: Path,
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    start: Path | BertConfig,
    conditions: Conditions,
) -> Path:
    """Return the folder of the pretrained network, trained now unless it is there."""
    stage = recipe.pretraining

    def write(folder: Path) -> None:
        texts = [text for _, texts in corpus.unlabelled for text in texts]
        encoded = encode(tokenizer, texts, max_length=stage.max_length)
        batches = MaskedBatches(encoded, stage, Special.of(tokenizer), recipe.seed)
        model = network.masked_language_model(start, recipe.seed, stage.dropout)
        result = run_stage(
            "pretraining",
            model,
            batches,
            stage,
            work / "pretraining-checkpoints",
            seed=recipe.seed,
            conditions=conditions,
        )
        model.save_pretrained(folder)
        (folder / _RESULT).write_text(json.dumps(result))

    return _once(work / "pretrained", write)


def _finetune(
    work: Path,
    recipe: Recipe,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    start: Path | BertConfig,
    conditions: Conditions,
) -> Path:
    """Return the folder of the fine-tuned network, trained now unless it is there."""
    stage = recipe.finetuning

    def write(folder: Path) -> None:
        texts = [text for _, texts in corpus.train for text in texts]
        classes = [number for _, texts in corpus.train for number in corpus.classes(texts)]
        encoded = encode(tokenizer, texts, max_length=stage.max_length, classes=classes)
        batches = Batches(encoded, stage, Special.of(tokenizer), recipe.seed)
        model = network.classifier(start, corpus.names, recipe.seed, stage.dropout)
        result = run_stage(
            "fine-tuning",
            model,
            batches,
            stage,
            work / "fine-tuning-checkpoints",
            seed=recipe.seed,
            conditions=conditions,
            evaluate=lambda: _accuracies(Classifier(model, tokenizer, "in training"), corpus),
        )
        model.half().save_pretrained(folder)
        (folder / _RESULT).write_text(json.dumps(result))

    return _once(work / "fine-tuned", write)


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
