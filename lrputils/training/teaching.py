"""Texts that a teacher answers for: another classifier, for a smaller one to learn from.

Its probabilities, at temperature 1, take the place of labels: Hinton, Vinyals and Dean 2015 (arXiv
1503.02531). Its hidden states, where they are asked for, say what each word means in its place,
which is more than a class says of a whole text: Jiao et al. 2020, "TinyBERT" (arXiv 1909.10351). Of
three depths they are kept, in few dimensions: the principal components of the first texts' states.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lrputils.models import Classifier, load_classifier
from lrputils.training.measure import batched
from lrputils.training.words import continuations, word_starts

DEPTHS = 3  # the teacher's layers whose states are kept: a third of its depth, two thirds, all
DIMENSIONS = 64  # of each; of a fine-tuned BERT's 384 they hold two thirds to three quarters
_SHARD = 4096  # texts; what a killed run loses at most


class Answers(NamedTuple):
    """What a teacher says of texts.

    Attributes:
        classes: float32 (texts, classes): the probability of each class.
        states: float16 (words of all texts, `DEPTHS`, at most `DIMENSIONS`), or None: hidden
            states, the total variance of a depth being 1 before components were left out. A text's
            words are its first special token and the first piece of each of its words.
        starts: integers (texts + 1,), or None: where the words of each text start.
    """

    classes: np.ndarray
    states: np.ndarray | None = None
    starts: np.ndarray | None = None


def find_teacher(name: str | None, names: Sequence[str], device: str) -> Classifier | None:
    """Load the classifier that teaches, if there is to be one.

    Raises:
        FileNotFoundError, ConnectionError: it is not there, or cannot be reached.
        ValueError: its classes are not `names`, in this order.
    """
    if name is None:
        return None
    teacher = load_classifier(name, device=device)
    if teacher.labels != tuple(names):
        raise ValueError(
            f"teacher={teacher.name!r} tells {list(teacher.labels)} apart, the training sets "
            f"{list(names)}: name the classes with --labels, or choose another teacher"
        )
    return teacher


def ask(
    teacher: Classifier,
    texts: Sequence[str],
    folder: Path,
    *,
    max_length: int,
    states: bool = False,
    quiet: bool = False,
) -> Answers:
    """Return the teacher's answers for each text, going on from the whole shards in `folder`.

    Args:
        teacher: the classifier that knows.
        texts: what it is asked about.
        folder: where the answers are kept, a file every 4,096 texts.
        max_length: tokens of its own a text; the rest is cut.
        states: whether its hidden states are asked for, too.
        quiet: no progress.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit = min(max_length, teacher.architecture.max_positions or max_length)
    asked = _Asked(teacher, limit)
    if states:
        asked.basis = _basis(asked, texts[:_SHARD], folder / "basis.npz")
    shards = []
    with tqdm(
        total=len(texts),
        desc="teacher",
        unit=" texts",
        disable=quiet,
        mininterval=1.0 if sys.stderr.isatty() else 10.0,
    ) as bar:
        for start in range(0, len(texts), _SHARD):
            path = folder / f"{start:08d}.npz"
            part = texts[start : start + _SHARD]
            if not path.is_file():
                _save(path, asked.answers(part))
            shards.append(_load(path))
            bar.update(len(part))
    return _joined(shards)


class _Basis(NamedTuple):
    mean: Tensor  # (depths, hidden)
    components: Tensor  # (depths, hidden, dimensions), over the square root of the total variance


class _Asked:
    """A teacher who is asked batch by batch."""

    basis: _Basis | None = None

    def __init__(self, teacher: Classifier, max_length: int):
        self.teacher, self.max_length = teacher, max_length
        layers = teacher.architecture.layers
        self.layers = [layers * depth // DEPTHS for depth in range(1, DEPTHS + 1)]

    def answers(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return `classes`, and with a basis `states` and `words`, the number of each text's."""
        classes = np.empty((len(texts), len(self.teacher.labels)), dtype=np.float32)
        states: list[np.ndarray] = [np.empty(0)] * len(texts)
        for rows, logits, found, counts in self.batches(texts):
            classes[rows] = logits.softmax(-1).cpu().numpy()
            if self.basis is not None:
                kept = torch.einsum(
                    "wdh,dhc->wdc", found - self.basis.mean, self.basis.components
                ).cpu()
                parts = np.split(kept.half().numpy(), np.cumsum(counts)[:-1])
                for row, part in zip(rows, parts, strict=True):
                    states[row] = part
        if self.basis is None:
            return {"classes": classes}
        words = np.array([len(part) for part in states])
        return {"classes": classes, "states": np.concatenate(states), "words": words}

    def batches(
        self, texts: Sequence[str]
    ) -> Iterator[tuple[np.ndarray, Tensor, Tensor, np.ndarray]]:
        """Yield row numbers, logits, states (words, depths, hidden), and words of each row."""
        self.teacher.model.eval()
        inside = continuations(self.teacher.tokenizer)
        for rows, inputs in batched(self.teacher, texts, self.max_length):
            arguments = inputs.model_kwargs() | {"output_hidden_states": True}
            with torch.no_grad():
                outputs = self.teacher.model(**arguments)
            ids, valid = inputs["input_ids"].cpu().numpy(), inputs.valid_mask.cpu().numpy()
            starts = torch.from_numpy(word_starts(ids, valid, inside))
            deep = torch.stack([outputs.hidden_states[layer] for layer in self.layers], 2)
            found = deep[starts.to(deep.device)].float()
            yield rows, outputs.logits, found, starts.sum(1).numpy()


def _basis(asked: _Asked, texts: Sequence[str], path: Path) -> _Basis:
    """Return the principal components of the states of `texts`, from `path` if they are there."""
    device = asked.teacher.device
    if not path.is_file():
        _save(path, _principal(asked, texts)._asdict())
    return _Basis(**{name: torch.from_numpy(a).to(device) for name, a in _load(path).items()})


def _principal(asked: _Asked, texts: Sequence[str]) -> _Basis:
    count, total, products = 0, torch.zeros(1), torch.zeros(1)
    for _, _, found, _ in asked.batches(texts):
        found = found.double().cpu()
        count, total = count + len(found), total + found.sum(0)
        products = products + torch.einsum("wdi,wdj->dij", found, found)
    mean = total / count
    covariance = products / count - mean[:, :, None] * mean[:, None, :]
    variances, vectors = torch.linalg.eigh(covariance)  # ascending
    kept = vectors.flip(-1)[..., :DIMENSIONS]
    return _Basis(mean.float(), (kept / variances.sum(-1)[:, None, None].sqrt()).float())


def _save(path: Path, arrays: dict[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, **arrays)
    partial.replace(path)


def _load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def _joined(shards: Sequence[dict[str, np.ndarray]]) -> Answers:
    whole = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
    if "states" not in whole:
        return Answers(whole["classes"])
    starts = np.concatenate([[0], np.cumsum(whole["words"])])
    return Answers(whole["classes"], whole["states"], starts)
