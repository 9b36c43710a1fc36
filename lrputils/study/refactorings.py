"""What attributions keep when a model computes the same attention in another way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import read
from lrputils.propagation.refactored import BLOCK_RULES, FORMS, Form, refactored, standard
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.removal.packing import by_length

LRP, FIXED = ("attnlrp",), ("cp-lrp", "gate gradient", "loo")


def compared(
    classifier: Classifier,
    texts: Texts,
    *,
    controls: bool = True,
    methods: Sequence[str] = LRP,
    forms: Mapping[str, Form] = FORMS,
    readout: str = "word",
    special: bool = True,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return how maps through each form of attention agree with those through the standard one.

    Args:
        classifier: `load_classifier`'s answer; in float64, differences of 1e-12 are seen.
        texts: `load_texts`' answer; the class predicted on each whole text is explained.
        methods: of `lrputils.propagation.refactored.BLOCK_RULES`.
        controls: whether to measure CP-LRP, the gradient of a gate on every key
            (A_ji ∝ m_i exp(Z_ji), at m = 1) and LOO by the attention mask in every form, too.
        forms: name → form of attention.
        readout: where relevance is read.
        special: whether correlations count special tokens.
        batch_size: texts a batch.
        max_length: longer texts are cut to this many tokens; to the model's limit if not given.

    Returns:
        one row a text, form and method: `id`, `form`, `method`; `logit`, the change of the
        explained logit; `r` with the same method's map in the standard form; `moved`, the sum of
        its absolute changes over that of its absolute scores; `r_loo` with LOO, and
        `r_loo_standard`, that of the standard form.
    """
    methods = (*methods, *FIXED) if controls else methods
    parts = {}
    for batch in by_length(texts, batch_size):
        inputs = classifier.encode([texts[i] for i in batch], max_length, truncate=True)
        where = inputs.valid_mask if special else inputs.content_mask
        found = _batch(classifier, inputs, methods, forms, readout, where)
        for row, text in enumerate(batch):
            parts[text] = found.loc[found.row == row].assign(id=texts.ids[text])
    rows = pd.concat([parts[text] for text in sorted(parts)], ignore_index=True)
    return rows[["id", *rows.columns.drop(["id", "row"])]]


def _batch(
    classifier: Classifier,
    inputs: Inputs,
    methods: Sequence[str],
    forms: Mapping[str, Form],
    readout: str,
    where: Tensor,
) -> pd.DataFrame:
    model = classifier.model
    with refactored(model, standard) as architecture:
        target = read(architecture, inputs).target
    loo = leave_one_out(model, inputs, target=target, progress=False)
    parts = []
    for method in methods:
        base, logits = _map(classifier, inputs, standard, method, target, readout)
        known = stats.pearson(base, loo, where)
        for name, form in forms.items():
            scores, changed = _map(classifier, inputs, form, method, target, readout)
            moved = (scores - base).abs().sum(1) / base.abs().sum(1)
            part = {
                "row": np.arange(len(scores)),
                "form": name,
                "method": method,
                "logit": (changed - logits).abs().cpu().double().numpy(),
                "r": stats.pearson(scores, base, where),
                "moved": moved.cpu().double().numpy(),
                "r_loo": stats.pearson(scores, loo, where),
                "r_loo_standard": known,
            }
            parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


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


def summary(rows: pd.DataFrame, method: str = "attnlrp") -> pd.DataFrame:
    """Return one method's rows as a table, a row a form in the order of the rows.

    `logit` is the largest change of a logit, `moved` its mean; `r`, `r with LOO` and `difference`,
    its change from the standard form's (paired by text), are means with intervals; those of
    correlations end at ±1, which the interval of a few texts' mean may pass.
    """
    found = {}
    for form, part in rows[rows.method == method].groupby("form", sort=False):
        found[form] = {"logit": part.logit.max(), "moved": part.moved.mean()}
        measured = {
            "r": stats.estimate(part.r),
            "r with LOO": stats.estimate(part.r_loo),
            "difference": stats.paired_difference(part.r_loo, part.r_loo_standard),
        }
        for name, (value, low, high, *_) in measured.items():
            bound = float("inf") if name == "difference" else 1.0
            ends = {f"{name} low": max(low, -bound), f"{name} high": min(high, bound)}
            found[form] |= {name: value, **ends}
    table = pd.DataFrame.from_dict(found, orient="index")
    rest = table.columns.drop("logit")
    table[rest] = table[rest].round(6) + 0.0  # below that differences are rounding; no −0
    names = ("r", "r with LOO", "difference")
    table.attrs["intervals"] = {name: (f"{name} low", f"{name} high") for name in names}
    return table
