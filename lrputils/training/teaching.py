"""Texts that a teacher labels: another classifier's probabilities, for a smaller one to learn from.

Hinton, Vinyals and Dean 2015 (arXiv 1503.02531), at temperature 1: the student's cross-entropy is
taken against all of the teacher's probabilities, not against its decision.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from lrputils.models import Classifier, load_classifier
from lrputils.training.measure import batched

_SHARD = 4096  # texts; what a killed run loses at most


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


def taught_classes(
    teacher: Classifier, texts: Sequence[str], folder: Path, *, max_length: int, quiet: bool = False
) -> np.ndarray:
    """Return the teacher's probability of each class for each text: float32 (texts, classes).

    Goes on from the whole shards in `folder`.

    Args:
        teacher: the classifier that knows.
        texts: what it is asked about.
        folder: where the answers are kept, a file every 4,096 texts.
        max_length: tokens of its own a text; the rest is cut.
        quiet: no progress.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit = min(max_length, teacher.architecture.max_positions or max_length)
    shards = []
    with tqdm(
        total=len(texts),
        desc="teacher",
        unit=" texts",
        disable=quiet,
        mininterval=1.0 if sys.stderr.isatty() else 10.0,
    ) as bar:
        for start in range(0, len(texts), _SHARD):
            path = folder / f"{start:08d}.npy"
            part = texts[start : start + _SHARD]
            if not path.is_file():
                partial = path.with_suffix(".partial")
                with partial.open("wb") as file:
                    np.save(file, _probabilities(teacher, part, limit))
                partial.replace(path)
            shards.append(np.load(path))
            bar.update(len(part))
    return np.concatenate(shards)


def _probabilities(teacher: Classifier, texts: Sequence[str], max_length: int) -> np.ndarray:
    teacher.model.eval()
    result = np.empty((len(texts), len(teacher.labels)), dtype=np.float32)
    for rows, inputs in batched(teacher, texts, max_length):
        with torch.no_grad():
            logits = teacher.model(**inputs.model_kwargs()).logits
        result[rows] = logits.softmax(-1).cpu().numpy()
    return result
