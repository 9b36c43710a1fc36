"""The texts of a recipe: loaded, held against each other, and turned into word pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizer, PreTrainedTokenizerBase

from lrputils.data.texts import OWN, Texts, load_texts
from lrputils.training.recipe import Recipe, Source, shortened

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_HELD_OUT = 0.1
_CHUNK = 1000


@dataclass(frozen=True)
class Corpus:
    """All texts of a recipe.

    Attributes:
        data: labelled sets to learn from.
        validation: labelled sets to measure on.
        unlabelled: sets for pretraining.
        labels: the labels as the data have them, sorted: class 0, class 1, …
        names: what the classes are called.
        held_out: whether `validation` was taken from the data.
    """

    data: tuple[Texts, ...]
    validation: tuple[Texts, ...]
    unlabelled: tuple[Texts, ...]
    labels: tuple[int | str, ...]
    names: tuple[str, ...]
    held_out: bool

    def classes(self, texts: Texts) -> np.ndarray:
        """Return the class number of each text: integers (texts,)."""
        number = {label: i for i, label in enumerate(self.labels)}
        return np.array([number[label] for label in texts.labels], dtype=np.int64)

    def table(self) -> list[dict[str, Any]]:
        """Return role, name, number of texts and identity of each set."""
        roles = {
            "training": self.data,
            "validation, held out" if self.held_out else "validation": self.validation,
            "pretraining": self.unlabelled,
        }
        return [
            {"role": role, "set": texts.name, "texts": len(texts), "identity": texts.identity}
            for role, sets in roles.items()
            for texts in sets
        ]


def load_corpus(recipe: Recipe) -> Corpus:
    """Load all texts of a recipe.

    Raises:
        ValueError: a set without labels where they are needed, labels that differ between sets,
            fewer than two of them, or another number of `recipe.labels`.
        FileNotFoundError, ConnectionError: as `load_texts`.
    """
    data = _load(recipe.data, training=True)
    validation = _load(recipe.validation)
    labels = _labels_of(data[0])
    for other in data[1:]:
        if _labels_of(other) != labels:
            raise ValueError(
                f"the sets of --data have different labels: {data[0].name!r} has {labels}, "
                f"{other.name!r} has {_labels_of(other)}; make them the same, or train on one"
            )
    if len(labels) < 2:
        raise ValueError(f"{data[0].name!r} has no two different labels, only {labels}")
    for other in validation:
        unknown = [label for label in _labels_of(other) if label not in labels]
        if unknown:
            raise ValueError(f"{other.name!r} has labels {unknown} that are not in --data {labels}")
    names = tuple(recipe.labels) or tuple(map(str, labels))
    if len(names) != len(labels):
        raise ValueError(f"--labels names {len(names)} classes, but the data have {labels}")
    if held_out := not validation:
        data, validation = _divide(data, recipe.seed)
    unlabelled = _load(recipe.unlabelled, training=True)
    return Corpus(data, validation, unlabelled, tuple(labels), names, held_out)


def _load(sources: Iterable[str], *, training: bool = False) -> tuple[Texts, ...]:
    found = []
    for source in sources:
        dataset, options = Source.parse(source)
        if training and dataset not in OWN and not Path(dataset).expanduser().is_file():
            options.setdefault("split", "train")  # load_texts prefers what models are measured on
        found.append(replace(load_texts(dataset, **options), name=shortened(source)))
    return tuple(found)


def _divide(sets: Sequence[Texts], seed: int) -> tuple[tuple[Texts, ...], tuple[Texts, ...]]:
    """Hold out a tenth of each set, at least two texts, which ones chance decides."""
    kept, held = [], []
    for texts in sets:
        count = max(2, round(_HELD_OUT * len(texts)))
        if len(texts) < 2 * count:
            raise ValueError(
                f"{texts.name!r} has only {len(texts)} texts, too few to hold some out: name texts "
                "to measure on with --validation"
            )
        order = np.random.default_rng(seed).permutation(len(texts)).tolist()
        kept.append(texts.take(sorted(order[count:])))
        held.append(texts.take(sorted(order[:count])))
    return tuple(kept), tuple(held)


def _labels_of(texts: Texts) -> list[int | str]:
    if texts.labels is None:
        raise ValueError(f"{texts.name!r} has no labels: name their column with label_column=…")
    if {type(label) for label in texts.labels} not in ({int}, {str}):
        odd = next(label for label in texts.labels if not isinstance(label, int | str))
        raise ValueError(f"{texts.name!r} has labels that are not all integers or names: {odd!r}")
    return sorted(set(texts.labels))


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


def _learn(texts: Sequence[str], size: int, first: Sequence[str]) -> dict[str, int]:
    learner = BertWordPieceTokenizer(lowercase=True)
    learner.train_from_iterator(
        texts, vocab_size=size, special_tokens=list(first), show_progress=False
    )
    return learner.get_vocab()


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    labels: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Turn texts into rows for a Trainer: `input_ids`, an int32 array, and `label` if given.

    With labels, what is longer than `max_length` is cut off; without, a long text becomes several.
    """
    rows: list[dict[str, Any]] = []
    for start in range(0, len(texts), _CHUNK):  # lists of numbers take ten times as much as arrays
        encoded = tokenizer(
            list(texts[start : start + _CHUNK]),
            max_length=max_length,
            truncation=True,
            return_overflowing_tokens=labels is None,
            return_attention_mask=False,
        )
        rows += [{"input_ids": np.array(ids, dtype=np.int32)} for ids in encoded["input_ids"]]
    if labels is not None:
        for row, label in zip(rows, labels, strict=True):
            row["label"] = label
    return rows
