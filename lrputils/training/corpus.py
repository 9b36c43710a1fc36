"""The texts of a recipe: loaded, held against each other, and turned into word pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import BertWordPieceTokenizer
from transformers import BertTokenizer, PreTrainedTokenizerBase

from lrputils.data.texts import Texts, load_texts
from lrputils.training.recipe import Recipe, Source
from lrputils.training.sentences import sentences_of

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_OF_SENTENCES = ("min_words", "max_words", "limit", "seed")
_CHUNK = 1000


class Named(NamedTuple):
    """Texts under the name that the card gives them."""

    name: str
    texts: Texts


@dataclass(frozen=True)
class Corpus:
    """All texts of a recipe.

    Attributes:
        train: labelled sets to learn from.
        taught: sets to learn from that a teacher labels.
        unlabelled: sets for pretraining.
        evaluate: labelled sets to measure on.
        labels: the labels as the data have them, sorted: class 0, class 1, …
        names: what the classes are called.
    """

    train: tuple[Named, ...]
    taught: tuple[Named, ...]
    unlabelled: tuple[Named, ...]
    evaluate: tuple[Named, ...]
    labels: tuple[int | str, ...]
    names: tuple[str, ...]

    def classes(self, texts: Texts) -> np.ndarray:
        """Return the class number of each text: integers (texts,)."""
        number = {label: i for i, label in enumerate(self.labels)}
        return np.array([number[label] for label in texts.labels], dtype=np.int64)

    def identities(self) -> list[dict[str, str | int]]:
        """Return role, name, number of texts and identity of each set."""
        roles = {
            "unlabelled": self.unlabelled,
            "training": self.train,
            "taught": self.taught,
            "test": self.evaluate,
        }
        return [
            {"role": role, "name": name, "texts": len(texts), "identity": texts.identity}
            for role, sets in roles.items()
            for name, texts in sets
        ]


def load_corpus(recipe: Recipe) -> Corpus:
    """Load all texts of a recipe.

    Raises:
        ValueError: a set without labels where they are needed, labels that differ between sets,
            fewer than two of them, or as many `recipe.labels` as there are not.
        FileNotFoundError, ConnectionError: as `load_texts`.
    """
    train = _load(recipe.train, "train")
    evaluate = _load(recipe.evaluate, "evaluate")
    labels = _labels_of(train[0])
    for other in train[1:]:
        if _labels_of(other) != labels:
            raise ValueError(
                f"the training sets have different labels: {train[0].name!r} has {labels}, "
                f"{other.name!r} has {_labels_of(other)}; make them the same, or train on one"
            )
    if len(labels) < 2:
        raise ValueError(f"{train[0].name!r} has no two different labels, only {labels}")
    for other in evaluate:
        unknown = [label for label in _labels_of(other) if label not in labels]
        if unknown:
            raise ValueError(
                f"{other.name!r} has labels {unknown} that the training sets lack: they have "
                f"{labels}"
            )
    names = recipe.labels or tuple(map(str, labels))
    if len(names) != len(labels):
        raise ValueError(f"labels={list(names)} names {len(names)} classes of {labels}")
    taught, unlabelled = _load(recipe.taught, "taught"), _load(recipe.unlabelled, "unlabelled")
    return Corpus(train, taught, unlabelled, evaluate, tuple(labels), names)


def _load(sources: Sequence[Source], role: str) -> tuple[Named, ...]:
    sets = []
    for source in sources:
        texts = _texts_of(source)
        sets.append(Named(source.name or texts.name, texts))
    names = [name for name, _ in sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two sets of --{role} are called {name!r}: give them name=…")
    return tuple(sets)


def _texts_of(source: Source) -> Texts:
    options = dict(source.options)
    if not source.sentences:
        return load_texts(source.dataset, **options)
    choice = {name: options.pop(name) for name in _OF_SENTENCES if name in options}
    return sentences_of(load_texts(source.dataset, **options), **choice)


def _labels_of(named: Named) -> list[int | str]:
    if named.texts.labels is None:
        raise ValueError(
            f"{named.name!r} has no labels: name their column, label_column=…, or leave it out"
        )
    kinds = {type(label) for label in named.texts.labels}
    if kinds not in ({int}, {str}):
        odd = next(label for label in named.texts.labels if not isinstance(label, int | str))
        raise ValueError(f"{named.name!r} has labels that are not all integers or names: {odd!r}")
    return sorted(set(named.texts.labels))


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
            f"vocabulary={size} is too small: the characters of the texts alone make "
            f"{len(vocabulary)} pieces"
        )
    return lower_cased(vocabulary, positions)


def lower_cased(vocabulary: dict[str, int] | None = None, positions: int = 512) -> BertTokenizer:
    """Return a lower-casing tokenizer of a vocabulary; if none is given, of special tokens only."""
    vocabulary = vocabulary or {token: number for number, token in enumerate(_SPECIAL)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=positions)


def _learn(texts: Sequence[str], size: int, first: Sequence[str]) -> dict[str, int]:
    learner = BertWordPieceTokenizer(lowercase=True)
    learner.train_from_iterator(
        texts, vocab_size=size, special_tokens=list(first), show_progress=False
    )
    return learner.get_vocab()


@dataclass(frozen=True)
class Encoded:
    """Texts as word pieces, in one array; special tokens are not stored.

    Attributes:
        pieces: integers (pieces of all texts,).
        starts: integers (texts + 1,): where each text starts; the last is the end.
        targets: the probability of each class, float32 (texts, classes), or None.
        states: a teacher's, float16 (words of all texts, depths, dimensions), or None.
        state_starts: integers (texts + 1,), where the states of each text start; a text without
            them has none. None where `states` is.
    """

    pieces: np.ndarray
    starts: np.ndarray
    targets: np.ndarray | None = None
    states: np.ndarray | None = None
    state_starts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, with the two special ones around it: integers (texts,)."""
        return np.diff(self.starts) + 2

    def __getitem__(self, row: int) -> np.ndarray:
        return self.pieces[self.starts[row] : self.starts[row + 1]]


def encode(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    max_length: int,
    targets: np.ndarray | None = None,
) -> Encoded:
    """Turn texts into word pieces, at most `max_length` with special tokens.

    With `targets`, what is longer is cut off; without, a long text becomes several.
    """
    rows = _pieces(tokenizer, texts)
    most = max_length - 2
    if targets is not None:
        kept = [row[:most] for row in rows]
    else:
        kept = [row[at : at + most] for row in rows for at in range(0, len(row), most)]
    starts = np.cumsum([0, *map(len, kept)])
    return Encoded(np.concatenate(kept), starts, targets)


def _pieces(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[np.ndarray]:
    # In chunks: Python lists of the numbers take ten times the memory of the arrays.
    for at in range(0, len(texts), _CHUNK):
        encoded = tokenizer(
            list(texts[at : at + _CHUNK]), add_special_tokens=False, return_attention_mask=False
        )
        yield from (np.array(row, dtype=np.int32) for row in encoded["input_ids"])
