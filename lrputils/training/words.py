"""Which word pieces begin a word: where two vocabularies meet that divide words differently."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedTokenizerBase


def continuations(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return whether each piece of a WordPiece vocabulary goes on with a word: booleans (pieces,).

    Of any other kind of vocabulary no piece does.
    """
    prefix = _prefix(tokenizer)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return np.array([bool(prefix) and piece.startswith(prefix) for piece in pieces])


def word_starts(ids: np.ndarray, valid: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return where a word begins, or a text with its first special token: booleans (texts, width).

    Args:
        ids: integers (texts, width), a special token first and last in each row.
        valid: booleans (texts, width), false at padding, which is at the end.
        inside: `continuations`.
    """
    starts = valid & ~inside[ids]
    starts[:, :-1] &= valid[:, 1:]  # less the last special token
    starts[:, -1] = False
    return starts


def check_same_words(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Refuse two tokenizers that do not divide texts into the same words.

    Raises:
        ValueError: they do not, or it cannot be known.
    """
    if not (_prefix(student) and _division(student) == _division(teacher)):
        raise ValueError(
            "a teacher's hidden states are matched word by word, but it divides texts into words "
            f"in another way: {_division(teacher)}, the student {_division(student)}. Leave out "
            "--imitate, or choose a lower-cased BERT as teacher"
        )


def _prefix(tokenizer: PreTrainedTokenizerBase) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return getattr(getattr(backend, "model", None), "continuing_subword_prefix", None) or None


def _division(tokenizer: PreTrainedTokenizerBase) -> str:
    """Describe all that happens to a text before words are divided into pieces."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer).__name__
    pieces = "WordPiece" if _prefix(tokenizer) else type(backend.model).__name__
    return f"{backend.normalizer}, {backend.pre_tokenizer}, {pieces}"
