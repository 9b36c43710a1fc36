"""A whole training: from texts to a folder that `load_classifier` takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lrputils.architectures import describe
from lrputils.data.texts import Texts
from lrputils.models import find_model, load_classifier, quietly
from lrputils.training import card
from lrputils.training.corpus import Corpus, encode, learn_vocabulary, load_corpus
from lrputils.training.folder import check_free, claim, finish, once
from lrputils.training.recipe import MASKED_RATE, PRETRAINED_RATE, Recipe
from lrputils.training.trainer import Conditions, Stage, fit
from lrputils.uniform_attention import correct

_MULTIPLE = 8  # widths of batches: matrix units like them


def train(recipe: Recipe, out: str | Path, conditions: Conditions | None = None) -> Path:
    """Train a text classifier and write it to `out`, with its tokenizer and its card.

    Weights are stored in half precision; the accuracies in the card are of these.

    Args:
        recipe: what to train, on what, how.
        out: a new folder, an empty one, or the one of the same recipe that was interrupted.
        conditions: device, checkpoints, progress.

    Raises:
        ValueError: a recipe that contradicts itself or its texts, a folder that holds another
            training, or a loss that is no longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts or a base model that are not there.
        TypeError: a base model that the package cannot attribute.
        ImportError: `accelerate`, which the Trainer needs, is not installed.
    """
    recipe.check()
    out, conditions = Path(out).expanduser(), conditions or Conditions()
    work = check_free(out)
    if find_spec("accelerate") is None:
        raise ImportError("training needs the package `accelerate`: pip install 'lrputils[train]'")
    corpus = load_corpus(recipe)
    with quietly():
        base = _find_base(recipe, corpus) if recipe.base else None
        facts = asdict(recipe) | {"texts": corpus.table(), "base": base and base.identity}
        claim(work, facts)
        course = _Course(work, recipe, corpus, base.folder if base else None, conditions)
        tokenizer = course.tokenizer()
        model, stages = course.model(tokenizer)
        export(model, tokenizer, out)
        trained = load_classifier(out, device=conditions.device)
        right = {t.name: correct(trained, t, corpus.classes(t)) for t in corpus.validation}
    sets = corpus.table() + ([base.row] if base else [])
    card.write(out, trained, stages, sets, right, recipe.command(), recipe.base)
    finish(work)
    return out


@dataclass(frozen=True)
class _Base:
    folder: Path
    name: str
    identity: str

    @property
    def row(self) -> dict[str, str]:
        return {"role": "base model", "set": self.name, "texts": "–", "identity": self.identity}


def _find_base(recipe: Recipe, corpus: Corpus) -> _Base:
    """Find the model to start from, and refuse early what could not be used later."""
    name, folder, commit = find_model(recipe.base)
    model = _classifier(folder, corpus.names, recipe.seed)
    positions = describe(model).max_positions
    if positions is not None and recipe.max_length > positions:
        raise ValueError(
            f"--max-length {recipe.max_length} is more than the {positions} positions of --base "
            f"{recipe.base}"
        )
    return _Base(folder, name, f"commit {commit}" if commit else card.digest(folder))


def _classifier(start: Path | PretrainedConfig, names: Sequence[str], seed: int) -> PreTrainedModel:
    """Return a classifier of the named classes, from a folder or new; what is new, `seed` decides.

    The output layer of a folder is kept where it tells as many classes apart.
    """
    torch.manual_seed(seed)
    known = isinstance(start, Path)
    config = AutoConfig.from_pretrained(start, trust_remote_code=False) if known else start
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
    if not known:
        return AutoModelForSequenceClassification.from_config(config)
    return AutoModelForSequenceClassification.from_pretrained(
        start,
        config=config,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        trust_remote_code=False,
    )


@dataclass(frozen=True)
class _Course:
    """The parts of a training, each kept in `work` and made only if it is not there."""

    work: Path
    recipe: Recipe
    corpus: Corpus
    base: Path | None
    conditions: Conditions

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the base model's tokenizer, or one learned from all texts to learn from."""

        def write(folder: Path) -> None:
            sets = (*self.corpus.data, *self.corpus.unlabelled)
            texts = list(dict.fromkeys(text for texts in sets for text in texts))
            size, positions = self.recipe.vocabulary, self.recipe.max_length
            learn_vocabulary(texts, size, positions).save_pretrained(folder)

        folder = self.base or once(self.work / "vocabulary", write)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # as decoders have none
        return tokenizer

    def model(self, tokenizer: PreTrainedTokenizerBase) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Return the trained classifier, and what each stage reported."""
        recipe, stages = self.recipe, {}
        start: Path | PretrainedConfig = self.base or bert_config(recipe, len(tokenizer))
        if self.corpus.unlabelled:
            write = partial(self._pretrain, start, tokenizer)
            start = once(self.work / "pretrained", write)
            stages["pretraining"] = json.loads((start / "result.json").read_text())
        model = _classifier(start, self.corpus.names, self.recipe.seed)
        model.config.pad_token_id = tokenizer.pad_token_id
        stages["fine-tuning"] = fit(
            model,
            [row for texts in self.corpus.data for row in self._rows(tokenizer, texts)],
            DataCollatorWithPadding(tokenizer, pad_to_multiple_of=_MULTIPLE),
            Stage(
                "fine-tuning", recipe.epochs, recipe.batch, recipe.rate, recipe.minutes, recipe.seed
            ),
            self.work / "fine-tuning",
            self.conditions,
            validation={t.name: self._rows(tokenizer, t) for t in self.corpus.validation},
        )
        return model, stages

    def _pretrain(
        self, start: Path | PretrainedConfig, tokenizer: PreTrainedTokenizerBase, folder: Path
    ) -> None:
        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        rate = PRETRAINED_RATE if recipe.base else MASKED_RATE
        new = isinstance(start, PretrainedConfig)
        create = AutoModelForMaskedLM.from_config if new else AutoModelForMaskedLM.from_pretrained
        model = create(start, dtype=torch.float32, trust_remote_code=False)
        texts = [text for texts in self.corpus.unlabelled for text in texts]
        result = fit(
            model,
            encode(tokenizer, texts, recipe.max_length),
            DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=_MULTIPLE),
            Stage("pretraining", recipe.pretraining_epochs, recipe.batch, rate, seed=recipe.seed),
            self.work / "pretraining",
            self.conditions,
        )
        model.save_pretrained(folder)
        (folder / "result.json").write_text(json.dumps(result))

    def _rows(self, tokenizer: PreTrainedTokenizerBase, texts: Texts) -> list[dict[str, Any]]:
        return encode(tokenizer, texts, self.recipe.max_length, self.corpus.classes(texts))


def bert_config(recipe: Recipe, pieces: int) -> BertConfig:
    """Describe the BERT of a recipe; its feed-forward blocks are four times as wide as it is."""
    return BertConfig(
        vocab_size=pieces,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.hidden,
        max_position_embeddings=recipe.max_length,
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=0.0,  # dropped attention would rule out the fused kernels
    )


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write weights in half precision, config and tokenizer."""
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
