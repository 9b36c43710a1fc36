"""What attention does, over texts: other forms of it, and even weights.

A classifier that loses nothing when every attention matrix becomes the uniform one reads a bag of
words; what attributions through its attention say is then of little interest. Models trained with
fixed attention are those of You, Sun and Iyyer (ACL 2020).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.by_text import in_batches
from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.attention import AttentionCall, fused
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.operations import routed
from lrputils.model.readout import read
from lrputils.propagation.refactored import BLOCK_RULES, FORMS, Form, refactored, standard
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.stats import Difference, Estimate, estimate, paired_difference
from lrputils.study.by_text import predicted

GATE = "gate gradient"  # of a gate on every key: A_ji ∝ m_i exp(Z_ji), at m = 1


@in_batches("id")
def through_forms(
    classifier: Classifier,
    inputs: Inputs,
    _: Tensor,
    *,
    methods: Sequence[str] = ("attnlrp", "cp-lrp", GATE, "loo"),
    forms: Mapping[str, Form] = FORMS,
) -> Iterator[dict[str, Any]]:
    """Return how maps through each form of attention agree with those through the standard one.

    Called with a classifier and `Texts`, see `experiments.by_text.in_batches`; the class predicted
    on each whole text is explained.

    Args:
        classifier: `load_classifier`'s answer; in float64, differences of 1e-12 are seen.
        inputs: of a batch of the texts.
        methods: of `lrputils.propagation.refactored.BLOCK_RULES`, `GATE`, and "loo" by the
            attention mask.
        forms: name → form of attention.

    Returns:
        one row a text, form and method: `id`, `form`, `method`; `logit`, the change of the
        explained logit; `r` with the same method's map in the standard form; `moved`, the sum of
        its absolute changes over that of its absolute scores; `r_loo` with LOO, and
        `r_loo_standard`, that of the standard form.
    """
    where = inputs.valid_mask
    with refactored(classifier.model, standard) as architecture:
        target = read(architecture, inputs).target
    loo = leave_one_out(classifier.model, inputs, target=target, progress=False)
    for method in methods:
        base, logits = _map(classifier, inputs, standard, method, target)
        known = stats.pearson(base, loo, where)
        for name, form in forms.items():
            scores, changed = _map(classifier, inputs, form, method, target)
            yield {
                "form": name,
                "method": method,
                "logit": (changed - logits).abs().double(),
                "r": stats.pearson(scores, base, where),
                "moved": ((scores - base).abs().sum(1) / base.abs().sum(1)).double(),
                "r_loo": stats.pearson(scores, loo, where),
                "r_loo_standard": known,
            }


def _map(
    classifier: Classifier, inputs: Inputs, form: Form, method: str, target: Tensor
) -> tuple[Tensor, Tensor]:
    """One method's scores `(batch, tokens)` through a form, and the explained logits `(batch,)`."""
    gate = None
    if method == GATE:
        gate = torch.ones_like(inputs.valid_mask, dtype=next(classifier.model.parameters()).dtype)
        gate = gate.to(target.device).requires_grad_()
    rule = BLOCK_RULES.get(method, BLOCK_RULES["gradient"])
    with refactored(classifier.model, form, rule, gate) as model:
        reading = read(model, inputs, target=target)
        if method == "loo":
            scores = leave_one_out(model, inputs, target=target, progress=False)
        elif gate is not None:
            (gradient,) = torch.autograd.grad(reading.output.sum(), gate)
            scores = reading.per_token(gradient)
        else:
            scores = reading.relevance(reading.gradient())
    return scores, reading.output.detach()


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
        return (call.combined(call.even_weights()), None) if chosen else fused(call)

    with routed(model, function):
        yield


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
