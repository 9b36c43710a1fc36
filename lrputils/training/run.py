"""A whole training: from texts to a folder that `load_classifier` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lrputils.data.files import digest, find_model
from lrputils.model.architectures import describe
from lrputils.model.classifier import load_classifier, quietly
from lrputils.runs.folders import claimed, once
from lrputils.study.attention import correct
from lrputils.training import card
from lrputils.training.corpus import Corpus, alone, encode, learn_vocabulary, load_corpus
from lrputils.training.recipe import Recipe
from lrputils.training.trainer import fit

Start = Path | BertConfig  # a pretrained network's folder, or what a new one looks like
_MULTIPLE = 8  # widths of batches: matrix units like them


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    device: str = "auto",
    quiet: bool = False,
    command: str = "",
) -> Path:
    """Train a text classifier and write it to `out`, with its tokenizer and its card.

    Weights are stored in half precision; the accuracies in the card are of these. `out` is a new
    folder, an empty one, or the one of the same recipe that was interrupted; "auto" takes a GPU if
    there is one. The card says the `command`.

    Raises:
        ValueError: a recipe that contradicts itself or its texts, a folder that holds another
            training, or a loss that is no longer a number.
        FileExistsError: a folder that holds something else.
        FileNotFoundError, ConnectionError: texts or a base model that are not there.
        TypeError: a base model that the package cannot attribute.
        ImportError: `accelerate`, which the Trainer needs, is not installed.
    """
    recipe.check()
    out = Path(out).expanduser()
    check_free(out)
    if find_spec("accelerate") is None:
        raise ImportError("training needs the package `accelerate`: pip install accelerate")
    corpus = load_corpus(recipe)
    sets, base = corpus.table(), None
    if recipe.base:
        base, found = _find_base(recipe, corpus)
        sets.append(found)
    plan = asdict(recipe) | {f"the {s['role']} set": s["identity"] for s in sets}
    with quietly(), claimed(out, plan, "training") as work:
        if base:
            tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # decoders have none
        else:
            tokenizer = learned_tokenizer(work, recipe, alone(corpus.data))
        conditions = {"device": device, "quiet": quiet}
        model, stages = _trained(work, recipe, corpus, base, tokenizer, conditions)
        export(model, tokenizer, out)
        clf = load_classifier(out, device=device)
        held = corpus.validation
        right = {held.name: correct(clf, held, corpus.classes(held))}
        card.write(out, clf, stages, sets, right, command, recipe.base)
    return out


def check_free(out: Path) -> None:
    """Refuse what is neither new, empty, nor the folder of a training that was interrupted."""
    if not out.exists() or (out / "training").is_dir() or (out.is_dir() and not [*out.iterdir()]):
        return
    what = "a model" if (out / "config.json").is_file() else "something else"
    raise FileExistsError(f"--out {out} already holds {what}: name a new folder")


def export(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write weights in half precision, config and tokenizer."""
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)


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


def _find_base(recipe: Recipe, corpus: Corpus) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the model to start from and its row in the card's table.

    A model that could not be fine-tuned or attributed later is refused here.
    """
    name, folder, commit = find_model(recipe.base)
    with quietly():
        positions = describe(classifier(folder, corpus.names, recipe.seed)).max_positions
    if positions is not None and recipe.max_length > positions:
        raise ValueError(
            f"--max-length {recipe.max_length} is more than the {positions} positions of --base "
            f"{recipe.base}"
        )
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    identity = f"commit {commit}" if commit else digest(map(Path.read_bytes, weights))
    return folder, {"role": "base model", "set": name, "texts": "–", "identity": identity}


def learned_tokenizer(work: Path, recipe: Recipe, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """Return the tokenizer whose vocabulary was learned from the texts, each once."""

    def write(folder: Path) -> None:
        different = list(dict.fromkeys(texts))
        learn_vocabulary(different, recipe.vocabulary, recipe.max_length).save_pretrained(folder)

    return AutoTokenizer.from_pretrained(once(work / "vocabulary", write))


def staged(folder: Path, learn: Callable[[], tuple[PreTrainedModel, dict]]) -> dict[str, Any]:
    """Keep in `folder` what `learn` trains, unless it is there; return what `fit` said of it."""

    def write(folder: Path) -> None:
        model, result = learn()
        model.save_pretrained(folder)
        (folder / "result.json").write_text(json.dumps(result))

    return json.loads((once(folder, write) / "result.json").read_text())


def classifier(start: Start, names: Sequence[str], seed: int) -> PreTrainedModel:
    """Return a classifier of the named classes; `seed` decides what is new in it."""
    named = {"id2label": dict(enumerate(names))}
    named |= {"label2id": {name: number for number, name in enumerate(names)}}
    torch.manual_seed(seed)
    if isinstance(start, BertConfig):
        start.update(named)
        return AutoModelForSequenceClassification.from_config(start)
    return AutoModelForSequenceClassification.from_pretrained(
        start,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # the output layer is kept if it has as many classes
        trust_remote_code=False,
        **named,
    )


def _trained(
    work: Path,
    recipe: Recipe,
    corpus: Corpus,
    base: Path | None,
    tokenizer: PreTrainedTokenizerBase,
    conditions: dict[str, Any],
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the trained classifier, and what each stage reported."""
    model = classifier(base or bert_config(recipe, len(tokenizer)), corpus.names, recipe.seed)
    model.config.pad_token_id = tokenizer.pad_token_id
    rows, held = (
        encode(tokenizer, texts, recipe.max_length, corpus.classes(texts))
        for texts in (corpus.data, corpus.validation)
    )
    result = fit(
        model,
        rows,
        DataCollatorWithPadding(tokenizer, pad_to_multiple_of=_MULTIPLE),
        work / "fine-tuning",
        epochs=recipe.epochs,
        learning_rate=recipe.rate,
        batch=recipe.batch,
        seed=recipe.seed,
        validation=held,
        **conditions,
    )
    return model, {"fine-tuning": result}
