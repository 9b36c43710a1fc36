"""Texts that a teacher answers for: another classifier, for a smaller one to learn from.

Its probabilities, at temperature 1, take the place of labels: Hinton, Vinyals and Dean 2015 (arXiv
1503.02531). Its hidden states say what each word means in its place, which is more than a class
says of a whole text: Jiao et al. 2020, "TinyBERT" (arXiv 1909.10351). Of three depths they are
kept, in few dimensions: the principal components of the first texts' states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm
from transformers import BatchEncoding

from lrputils import Classifier
from lrputils.removal.packing import by_length
from lrputils.runs.folders import atomic_write

DEPTHS = 3  # the teacher's layers whose states are kept: a third of its depth, two thirds, all
DIMENSIONS = 64  # of each; of a fine-tuned BERT's 384 they hold two thirds to three quarters
_SHARD, _BATCH = 4096, 32  # texts; a killed run loses a shard at most

_BREAK = re.compile(r"(?:<br\s*/?>|\n)+")
_END = re.compile(r"""(?:(?<=[.!?…])|(?<=[.!?…]["')\]]))\s+""")


class Answers(NamedTuple):
    """What a teacher says of texts.

    Attributes:
        classes: float32 (texts, classes): the probability of each class.
        states: of each text, float16 (words, `DEPTHS`, at most `DIMENSIONS`): hidden states at
            `word_starts`, the total variance of a depth being 1 before components were left out.
    """

    classes: np.ndarray
    states: list[np.ndarray]


def word_starts(encoding: BatchEncoding, row: int) -> list[int]:
    """Return where a text's first special token and the first piece of each word stand."""
    words = encoding.word_ids(row)
    return [0] + [
        i for i in range(1, len(words)) if words[i] is not None and words[i] != words[i - 1]
    ]


def ask(
    teacher: Classifier, texts: Sequence[str], folder: Path, max_length: int, quiet: bool = False
) -> Answers:
    """Return the teacher's answers for each text, going on from the whole shards in `folder`.

    Args:
        teacher: the classifier that knows.
        texts: what it is asked about.
        folder: where the answers are kept, a file every 4,096 texts.
        max_length: tokens of its own a text; the rest is cut.
        quiet: no progress.
    """
    path = folder / "basis.npz"
    if not path.is_file():
        _save(path, _principal(teacher, texts[:_SHARD], max_length))
    basis = _load(path)
    classes, states = [], []
    starts = range(0, len(texts), _SHARD)
    for start in tqdm(starts, desc="teacher", unit=" shards", disable=quiet):
        path = folder / f"{start:08d}.npz"
        if not path.is_file():
            _save(path, _answers(teacher, texts[start : start + _SHARD], max_length, basis))
        shard = _load(path)
        classes.append(shard["classes"])
        states += np.split(shard["states"], np.cumsum(shard["words"])[:-1])
    return Answers(np.concatenate(classes), states)


def _answers(
    teacher: Classifier, texts: Sequence[str], max_length: int, basis: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    classes = np.empty((len(texts), len(teacher.labels)), dtype=np.float32)
    states: list[np.ndarray] = [np.empty(0)] * len(texts)
    for rows, logits, found, counts in _batches(teacher, texts, max_length):
        classes[rows] = logits.softmax(-1).cpu().numpy()
        kept = np.einsum("wdh,dhc->wdc", found.numpy() - basis["mean"], basis["components"])
        parts = np.split(kept.astype(np.float16), np.cumsum(counts)[:-1])
        for row, part in zip(rows, parts, strict=True):
            states[row] = part
    words = np.array([len(part) for part in states])
    return {"classes": classes, "states": np.concatenate(states), "words": words}


def _batches(
    teacher: Classifier, texts: Sequence[str], max_length: int
) -> Iterator[tuple[list[int], Tensor, Tensor, list[int]]]:
    """Yield row numbers, logits, states (words, depths, hidden), and words of each row."""
    layers = teacher.architecture.layers
    depths = [layers * depth // DEPTHS for depth in range(1, DEPTHS + 1)]
    for rows in by_length(texts, _BATCH):
        encoding = teacher.tokenizer(
            [texts[row] for row in rows],
            max_length=min(max_length, teacher.architecture.max_positions or max_length),
            truncation=True,
            padding=True,
            return_tensors="pt",
        ).to(teacher.device)
        with torch.no_grad():
            outputs = teacher.model(**encoding, output_hidden_states=True)
        deep = torch.stack([outputs.hidden_states[depth] for depth in depths], 2).float().cpu()
        starts = [word_starts(encoding, i) for i in range(len(rows))]
        found = torch.cat([deep[i, words] for i, words in enumerate(starts)])
        yield rows, outputs.logits, found, [len(words) for words in starts]


def _principal(teacher: Classifier, texts: Sequence[str], max_length: int) -> dict[str, np.ndarray]:
    """Return `mean` (depths, hidden) and `components` (depths, hidden, dimensions) of states.

    Components are divided by the square root of a depth's total variance.
    """
    count, total, products = 0, torch.zeros(1), torch.zeros(1)
    for _, _, found, _ in _batches(teacher, texts, max_length):
        found = found.double()
        count, total = count + len(found), total + found.sum(0)
        products = products + torch.einsum("wdi,wdj->dij", found, found)
    mean = total / count
    covariance = products / count - mean[:, :, None] * mean[:, None, :]
    variances, vectors = torch.linalg.eigh(covariance)  # ascending
    kept = vectors.flip(-1)[..., :DIMENSIONS] / variances.sum(-1)[:, None, None].sqrt()
    return {"mean": mean.float().numpy(), "components": kept.float().numpy()}


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def sentences_of(
    texts: Iterable[str], min_words: int, max_words: int, limit: int, seed: int
) -> list[str]:
    """Return at most `limit` sentences of the texts, each once, chosen by chance.

    A sentence ends at `.`, `!` or `?` before white space, and at a line break (also HTML's);
    abbreviations are not known. The first n of them do not depend on `limit`.
    """
    found = dict.fromkeys(
        sentence
        for text in texts
        for sentence in _divided(text)
        if min_words <= len(sentence.split()) <= max_words
    )
    sentences = list(found)
    order = np.random.default_rng(seed).permutation(len(sentences))
    return [sentences[row] for row in order[:limit]]


def _divided(text: str) -> Iterator[str]:
    for line in _BREAK.split(text):
        yield from (sentence.strip() for sentence in _END.split(line) if sentence.strip())
