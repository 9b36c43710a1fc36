"""How much a classifier needs its attention: accuracy with uniform attention in its place.

A classifier that loses nothing when every attention matrix becomes the uniform one reads a bag of
words; what attributions through its attention say is then of little interest. Models trained with
fixed attention are those of You, Sun and Iyyer (ACL 2020).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, fused, routed
from lrputils.model.classifier import Classifier
from lrputils.removal.packing import by_length
from lrputils.stats import Estimate, estimate, paired_difference

_BATCH = 32


def attention_matters(classifier: Classifier, texts: Texts) -> dict[str, Estimate]:
    """Measure how far accuracy falls when every attention matrix is the uniform one.

    `texts` have labels, class numbers or the names of the model's classes; longer texts are cut to
    the model's limit.

    Returns:
        shares of texts classified correctly, each with its interval: "accuracy" with the model's
        attention, "uniform" with uniform attention, and their "fall", paired by text; then the fall
        with uniform attention in each quarter of the layers alone, as "layers 1 to 3".

    Raises:
        ValueError: texts without labels, a label that is none of the model's classes, or fewer than
            two texts.
    """
    classes = classes_of(classifier, texts)
    own = correct(classifier, texts, classes)

    def flattened(layers: range | None = None) -> np.ndarray:
        with uniform_attention(classifier.model, layers):
            return correct(classifier, texts, classes)

    flat, depth = flattened(), classifier.architecture.layers
    found = {"accuracy": estimate(own), "uniform": estimate(flat)}
    found["fall"] = paired_difference(own, flat)
    parts = min(4, depth)
    bounds = [depth * part // parts for part in range(parts + 1)]
    for start, end in pairwise(bounds):
        name = f"layers {start + 1} to {end}"
        found[name] = paired_difference(own, flattened(range(start, end)))
    return found


@contextmanager
def uniform_attention(model: nn.Module, layers: Container[int] | None = None) -> Iterator[None]:
    """Inside the block every query of `model` attends evenly to all keys that it may see.

    In `layers` only, counted from 0, if they are given.
    """

    def function(call: AttentionCall) -> tuple[Tensor, None]:
        chosen = layers is None or call.layer in layers
        return (call.combined(call.even_weights()), None) if chosen else fused(call)

    with routed(model, function):
        yield


def classes_of(classifier: Classifier, texts: Texts) -> np.ndarray:
    """Return the class number of each text's label: integers (texts,)."""
    if texts.labels is None:
        raise ValueError(f"{texts.name!r} has no labels to measure accuracy on")
    names, numbers = classifier.labels, classifier.number_labels(texts.labels)
    if None in numbers:
        pairs = zip(texts.labels, numbers, strict=True)
        unknown = sorted({str(label) for label, number in pairs if number is None})
        raise ValueError(
            f"{texts.name!r} has labels {unknown[:5]} that are no class of {classifier.name!r}: "
            f"those are {list(names)}, or 0 to {len(names) - 1}"
        )
    return np.array(numbers)


def correct(classifier: Classifier, texts: Texts, classes: np.ndarray) -> np.ndarray:
    """Return whether each text is put into its class, booleans (texts,)."""
    predicted = np.empty(len(texts), dtype=np.int64)
    for chosen in by_length(texts, _BATCH):
        inputs = classifier.encode([texts[i] for i in chosen], truncate=True)
        with torch.no_grad():
            logits = classifier.model(**inputs.model_kwargs()).logits
        predicted[chosen] = logits.argmax(-1).cpu().numpy()
    return predicted == classes
