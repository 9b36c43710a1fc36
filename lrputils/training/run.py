"""A whole training: from texts to a folder that `load_classifier` takes.

Everything on the way is kept in `training/` inside the folder, so that the same call goes on where
an earlier one was ended. A part is there once it is whole; at the end `training/` is removed.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lrputils.models import Classifier, load_classifier, quietly
from lrputils.training import card, network
from lrputils.training.corpus import Corpus, load_corpus, lower_cased
from lrputils.training.course import RESULT, Course
from lrputils.training.measure import attention_matters
from lrputils.training.recipe import Conditions, Recipe
from lrputils.training.teaching import find_teacher
from lrputils.training.words import check_same_words

_WORK = "training"
_RECIPE = "recipe.json"


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
        ValueError: a recipe that contradicts itself or its texts, a teacher with other classes or,
            to imitate, other words, a folder that holds another training, or a loss that is no
            longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts, a base model or a teacher that are not there.
        ImportError: `accelerate`, which the Trainer needs, is not installed.
    """
    recipe, out = recipe.checked(), Path(out).expanduser()
    conditions = conditions or Conditions()
    _check_free(out)
    if find_spec("accelerate") is None:
        raise ImportError("training needs the package `accelerate`: pip install accelerate")
    base = network.find_base(recipe.base) if recipe.base else None
    if base:
        network.check_positions(base, recipe)
    corpus = load_corpus(recipe)
    teacher = find_teacher(recipe.teacher, corpus.names, conditions.device)
    if teacher is not None and recipe.imitate:
        own = network.load_tokenizer(base.folder) if base else lower_cased()
        check_same_words(own, teacher.tokenizer)
    work = out / _WORK
    _claim(work, recipe, corpus, base, teacher)
    with quietly():
        course = Course(work, recipe, corpus, base, teacher, conditions)
        tokenizer = course.tokenizer()
        folders = course.networks(tokenizer)
        _export(folders["finetuning"], tokenizer, out)
        trained = load_classifier(out, device=conditions.device)
        measured = _measure(trained, corpus, conditions.uniform_attention)
    results = {name: json.loads((folder / RESULT).read_text()) for name, folder in folders.items()}
    card.write(out, trained, recipe, corpus, base, teacher, results, measured)
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


def _export(folder: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    for path in folder.iterdir():
        if path.name != RESULT:
            partial = out / f"{path.name}.partial"
            shutil.copyfile(path, partial)
            os.replace(partial, out / path.name)
    tokenizer.save_pretrained(out)


def _measure(classifier: Classifier, corpus: Corpus, uniform: bool) -> dict[str, Any]:
    return {
        name: attention_matters(classifier, texts, classes=corpus.classes(texts), uniform=uniform)
        for name, texts in corpus.evaluate
    }
