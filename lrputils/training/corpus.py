"""The texts of a recipe: loaded, compared with each other, and turned into word pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizer, PreTrainedTokenizerBase

from lrputils.data.given import Text, sides
from lrputils.data.texts import OWN, Texts, load_texts
from lrputils.runs.options import shortened
from lrputils.training.recipe import Recipe

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_CHUNK = 1000  # texts tokenized at once
HELD_OUT = "(held out)"  # the end of the name of a set held out from the training data


@dataclass(frozen=True)
class Corpus:
    """The texts of a recipe: labelled, to learn from and to measure on.

    `labels` are the labels as the data have them, sorted: class 0, class 1, …; `names` what they
    are called.
    """

    data: Texts
    validation: Texts
    labels: list[int | str]
    names: tuple[str, ...]

    def classes(self, texts: Texts) -> np.ndarray:
        """Return the class number of each text: integers (texts,)."""
        return np.array([self.labels.index(label) for label in texts.labels])

    def table(self) -> list[dict[str, Any]]:
        """Return role, name, number of texts and identity of each set."""
        return [row("training", self.data), row("validation", self.validation)]


def row(role: str, texts: Texts) -> dict[str, Any]:
    """Return what a card's table says of a set of texts."""
    return {"role": role, "set": texts.name, "texts": len(texts), "identity": texts.identity}


def load_corpus(recipe: Recipe) -> Corpus:
    """Load all texts of a recipe; what is not there is told as `load_texts` tells it.

    Raises:
        ValueError: texts without labels where they are needed, fewer than two different ones,
            labels to measure on that were not learned, or another number of `recipe.labels`.
    """
    data = _load(recipe.data, recipe.columns, training=True)
    labels = _labels_of(data)
    if len(labels) < 2:
        raise ValueError(f"{data.name!r} has no two different labels, only {labels}")
    names = tuple(recipe.labels) or tuple(map(str, labels))
    if len(names) != len(labels):
        raise ValueError(f"--labels names {len(names)} classes, but the data have {labels}")
    if recipe.validation:
        validation = _load(recipe.validation, recipe.columns)
        if unknown := [label for label in _labels_of(validation) if label not in labels]:
            raise ValueError(f"{validation.name!r} has labels {unknown} that {data.name!r} lacks")
    else:
        data, validation = _divided(data, recipe.seed)
    return Corpus(data, validation, labels, names)


def _load(dataset: str, columns: str, *, training: bool = False) -> Texts:
    split = None  # load_texts prefers what models are measured on
    if training and dataset not in OWN and not Path(dataset).expanduser().is_file():
        split = "train"
    return replace(load_texts(dataset, columns, split=split), name=shortened(dataset))


def alone(texts: Iterable[Text]) -> list[str]:
    """Return texts with the two of each pair apart."""
    return [side for text in texts for side in sides(text)]


def _divided(texts: Texts, seed: int) -> tuple[Texts, Texts]:
    """Hold out a tenth of the texts, at least two; which ones, chance decides."""
    if len(texts) < 4:
        raise ValueError(f"{texts.name!r} has {len(texts)} texts, too few to hold some out")
    count, order = max(2, len(texts) // 10), np.random.default_rng(seed).permutation(len(texts))
    held = replace(texts.take(order[:count].tolist()), name=f"{texts.name} {HELD_OUT}")
    return texts.take(order[count:].tolist()), held


def _labels_of(texts: Texts) -> list[int | str]:
    if texts.labels is None:
        raise ValueError(f"{texts.name!r} has no labels: name their column, --columns TEXT,LABEL")
    different = list(dict.fromkeys(texts.labels))
    if {type(label) for label in different} not in ({int}, {str}):
        raise ValueError(
            f"{texts.name!r} has labels that are not all integers, or not all names: {different}"
        )
    return sorted(different)


def learn_vocabulary(texts: Sequence[str], size: int, positions: int) -> BertTokenizer:
    """Learn a lower-cased WordPiece vocabulary of at most `size` pieces; the same one every time.

    Raises:
        ValueError: `size` does not even hold the characters of the texts.
    """
    # The learner numbers the characters inside words in the order of a hash table, and breaks ties
    # between merges by those numbers (tokenizers issue 1794). Characters it is given it numbers
    # in the order given: so once for the characters, once for the pieces.
    characters = sorted(set(_learn(texts, 1, _SPECIAL)) - set(_SPECIAL))
    vocabulary = _learn(texts, size, [*_SPECIAL, *characters])
    if len(vocabulary) > size:
        raise ValueError(
            f"--vocabulary {size} is too small: the characters of the texts alone make "
            f"{len(vocabulary)} pieces"
        )
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=positions)


def _learn(texts: Sequence[str], size: int, first: list[str]) -> dict[str, int]:
    learner = BertWordPieceTokenizer(lowercase=True)
    learner.train_from_iterator(texts, vocab_size=size, special_tokens=first, show_progress=False)
    return learner.get_vocab()


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    max_length: int,
    labels: Sequence[Any],
) -> list[dict[str, Any]]:
    """Turn texts into rows for a Trainer: `input_ids`, an int32 array, and `label`.

    Rows of pairs have `token_type_ids` too, where the tokenizer makes them. What is longer than
    `max_length` is cut off, of a pair the longer side.
    """
    rows: list[dict[str, Any]] = []
    pairs = not isinstance(texts[0], str)
    for start in range(0, len(texts), _CHUNK):  # lists of numbers take ten times as much as arrays
        part = texts[start : start + _CHUNK]
        encoded = tokenizer(
            *([sides(text)[side] for text in part] for side in range(1 + pairs)),
            max_length=max_length,
            truncation=True,
            return_attention_mask=False,
        )
        names = ["input_ids", "token_type_ids"][: 1 + (pairs and "token_type_ids" in encoded)]
        columns = [[np.array(ids, dtype=np.int32) for ids in encoded[name]] for name in names]
        rows += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [row | {"label": label} for row, label in zip(rows, labels, strict=True)]
