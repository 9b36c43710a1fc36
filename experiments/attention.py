"""What even attention weights do, over texts.

A classifier that loses nothing when every attention matrix becomes the uniform one reads a bag of
words; what attributions through its attention say is then of little interest. Models trained with
fixed attention are those of You, Sun and Iyyer (ACL 2020).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from torch import Tensor, nn

from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, fused
from lrputils.model.classifier import Classifier
from lrputils.model.operations import routed
from lrputils.stats import Difference, Estimate, estimate, paired_difference
from lrputils.study.by_text import predicted


def attention_matters(classifier: Classifier, texts: Texts) -> dict[str, Estimate | Difference]:
    """Measure how far accuracy falls when every attention matrix is the uniform one.

    Args:
        classifier: `load_classifier`'s answer.
        texts: with labels, class numbers or the names of the model's classes; longer texts are cut
            to the model's limit.

    Returns:
        shares of texts classified correctly, each with its interval: "accuracy" with the model's
        attention, "uniform" with uniform attention, and their "fall", paired by text; then the fall
        with uniform attention in each quarter of the layers alone, as "layers 1 to 3".

    Raises:
        ValueError: texts without labels, or a label that is none of the model's classes.
    """
    own = correct(classifier, texts)
    with uniform_attention(classifier.model):
        flat = correct(classifier, texts)
    measured: dict[str, Estimate | Difference] = {
        "accuracy": estimate(own),
        "uniform": estimate(flat),
        "fall": paired_difference(own, flat),
    }
    depth = classifier.architecture.layers
    parts = min(4, depth)
    for start, end in pairwise(depth * part // parts for part in range(parts + 1)):
        with uniform_attention(classifier.model, range(start, end)):
            part = correct(classifier, texts)
        measured[f"layers {start + 1} to {end}"] = paired_difference(own, part)
    return measured


@contextmanager
def uniform_attention(model: nn.Module, layers: Container[int] | None = None) -> Iterator[None]:
    """Inside the block every query of `model` attends evenly to all keys that it may see.

    In `layers` only, counted from 0, if they are given.
    """

    def function(call: AttentionCall) -> tuple[Tensor, None]:
        chosen = layers is None or call.layer in layers
        return (call.combined(even_weights(call)), None) if chosen else fused(call)

    with routed(model, function):
        yield


def even_weights(call: AttentionCall) -> Tensor:
    """Attention that is the same to all keys that a query sees; none where it sees none."""
    seen = call.seen().to(call.value.dtype)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


def correct(classifier: Classifier, texts: Texts) -> np.ndarray:
    """Return whether each text is put into its class, booleans (texts,).

    Raises:
        ValueError: texts without labels, or a label that is none of the model's classes.
    """
    batches = predicted(classifier, texts, 16, None)
    rows = {row["position"]: row for *_, batch in batches for row in batch}
    if any(row["label"] is None for row in rows.values()):
        raise ValueError(
            f"{texts.name!r} has texts without a label that is a class of {classifier.name!r}: "
            f"those are {list(classifier.labels)}, or their numbers"
        )
    return np.array([rows[text]["target"] == rows[text]["label"] for text in sorted(rows)])
