"""What attributions keep when a model computes the same attention in another way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lrputils import stats
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.propagation.refactored import BLOCK_RULES, FORMS, Form, refactored, standard
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.by_text import in_batches

LRP, FIXED = ("attnlrp",), ("cp-lrp", "gate gradient", "loo")


@in_batches("id")
def compared(
    classifier: Classifier,
    inputs: Inputs,
    _: Tensor,
    *,
    controls: bool = True,
    methods: Sequence[str] = LRP,
    forms: Mapping[str, Form] = FORMS,
    readout: str = "word",
    special: bool = True,
) -> Iterator[dict[str, Any]]:
    """Return how maps through each form of attention agree with those through the standard one.

    Called with a classifier and `Texts`, see `lrputils.study.by_text.in_batches`; the class
    predicted on each whole text is explained.

    Args:
        classifier: `load_classifier`'s answer; in float64, differences of 1e-12 are seen.
        inputs: of a batch of the texts.
        methods: of `lrputils.propagation.refactored.BLOCK_RULES`.
        controls: whether to measure CP-LRP, the gradient of a gate on every key
            (A_ji ∝ m_i exp(Z_ji), at m = 1) and LOO by the attention mask in every form, too.
        forms: name → form of attention.
        readout: where relevance is read.
        special: whether correlations count special tokens.

    Returns:
        one row a text, form and method: `id`, `form`, `method`; `logit`, the change of the
        explained logit; `r` with the same method's map in the standard form; `moved`, the sum of
        its absolute changes over that of its absolute scores; `r_loo` with LOO, and
        `r_loo_standard`, that of the standard form.
    """
    where = inputs.valid_mask if special else inputs.content_mask
    with refactored(classifier.model, standard) as architecture:
        target = read(architecture, inputs).target
    loo = leave_one_out(classifier.model, inputs, target=target, progress=False)
    for method in (*methods, *FIXED) if controls else methods:
        base, logits = _map(classifier, inputs, standard, method, target, readout)
        known = stats.pearson(base, loo, where)
        for name, form in forms.items():
            scores, changed = _map(classifier, inputs, form, method, target, readout)
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
    classifier: Classifier, inputs: Inputs, form: Form, method: str, target: Tensor, readout: str
) -> tuple[Tensor, Tensor]:
    """One method's scores `(batch, tokens)` through a form, and the explained logits `(batch,)`."""
    gate = torch.ones_like(inputs.valid_mask, dtype=next(classifier.model.parameters()).dtype)
    gate = gate.to(target.device).requires_grad_(method == "gate gradient")
    rule = BLOCK_RULES.get(method, BLOCK_RULES["gradient"])
    with refactored(classifier.model, form, rule, gate if gate.requires_grad else None) as model:
        reading = read(model, inputs, target=target, readout=readout)
        if method == "loo":
            scores = leave_one_out(model, inputs, target=target, progress=False)
        elif gate.requires_grad:
            (gradient,) = torch.autograd.grad(reading.output.sum(), gate)
            scores = reading.per_token(gradient)
        else:
            scores = reading.relevance(reading.gradient())
    return scores, reading.output.detach()
