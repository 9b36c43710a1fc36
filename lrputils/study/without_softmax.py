"""Transformers that were trained with and without a softmax, and their maps beside LOO.

Linear attention here is the bare product O_j = c Σ_i (s·q_j·k_i) v_i with a constant c: hiding key
i takes exactly its own term from the sum, and nothing is normalised again. What is left of LRP's
distance from LOO in such a model is not the softmax's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils import stats
from lrputils.data.texts import Texts
from lrputils.linear_attention.agreement import crossed_estimate
from lrputils.model.architectures import Architecture, describe
from lrputils.model.attention import AttentionCall, AttentionFunction, fused, routed, with_all_heads
from lrputils.model.classifier import Classifier
from lrputils.model.handles import Handle
from lrputils.model.readout import read
from lrputils.propagation.composites import ATTN_LRP, CANONISED_LRP, CP_LRP, GRADIENT, installed
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.stats import Estimate
from lrputils.study import zoo

SCALE = 1 / 8  # c
SOFTMAX, LINEAR = "softmax", "no softmax"
COMPOSITES = {
    "AttnLRP": ATTN_LRP,
    "CP-LRP": CP_LRP,
    "Canonised LRP": CANONISED_LRP,
    "Gradient × input": GRADIENT,
}
GATE = "Gate gradient"
METHODS = (*COMPOSITES, GATE)


def linear(call: AttentionCall) -> tuple[Tensor, None]:
    """Attention without a softmax, O = c·(s·Q·Kᵀ)·V over the keys that a query sees."""
    weights = SCALE * call.scores() * call.seen()
    return call.combined(weights.to(call.value.dtype)), None


KERNELS = {SOFTMAX: fused, LINEAR: linear}


@contextmanager
def gated(architecture: Architecture, gate: Tensor, kernel: AttentionFunction) -> Iterator[None]:
    """Inside the block every key i has a weight m_i, `(batch, tokens)`, in every layer."""

    def attention(call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        m = gate[:, None, :, None]
        if kernel is linear:
            return kernel(replace(call, value=m * with_all_heads(call.value, call.query)))
        scores = call.scores() + torch.where(call.seen(), gate.log()[:, None, None], -torch.inf)
        return call.combined(torch.softmax(scores, -1)), None

    with routed(architecture, attention):
        yield


def maps(
    model: Handle, inputs: Mapping[str, Any], kernel: AttentionFunction = fused
) -> dict[str, Tensor]:
    """LOO, the composites' maps and the gradient of a gate on every key, `(batch, tokens)` each.

    `kernel` is the attention that the model was trained with: `fused` or `linear`.
    """
    architecture = describe(model)
    with routed(architecture, kernel):
        target = read(architecture, inputs).target
        found = {"LOO": leave_one_out(architecture, inputs, target=target, progress=False)}
    for name, composite in COMPOSITES.items():
        with installed(architecture, composite.rule, kernel):
            reading = read(architecture, inputs, target=target)
            found[name] = reading.relevance(reading.gradient())
    gate = reading.valid.to(reading.output.dtype).requires_grad_()
    with gated(architecture, gate, kernel):
        reading = read(architecture, inputs, target=target)
        found[GATE] = reading.per_token(torch.autograd.grad(reading.output.sum(), gate)[0])
    return found


def measured(texts: Texts, images: int, seeds: Iterable[int]) -> pd.DataFrame:
    """r with LOO in the shipped models with and without a softmax, special tokens left out.

    Of BERT on the texts and ViT on so many test digits; a training seed is a pair that had the same
    start and saw the same batches.

    Returns:
        a row a model and text or image: `data`, `seed`, `attention`, `id`, `right` (whether the
        predicted class is the label), and r of each method.
    """
    rows = []
    for family, data in {"bert": "reviews", "vit": "digits"}.items():
        for seed in seeds:
            for attention, kernel in KERNELS.items():
                model = zoo.load(family + zoo.LINEAR * (kernel is linear), seed)
                if isinstance(model, Classifier):
                    inputs = model.encode(list(texts), zoo.POSITIONS, truncate=True)
                    known = [model.class_numbers[label] for label in texts.labels]
                    where = inputs.content_mask
                else:
                    inputs, digits = zoo.images(images)
                    known = digits.test_labels[:images]
                    where = torch.ones(images, 17, dtype=torch.bool)
                    where[:, 0] = False
                found = maps(model, inputs, kernel)
                part = {n: stats.pearson(m, found["LOO"], where) for n, m in found.items()}
                right = predicted(model, inputs, kernel).numpy() == known
                facts = {"data": data, "seed": seed, "attention": attention, "right": right}
                rows.append(pd.DataFrame({**facts, "id": range(len(right)), **part}))
    return pd.concat(rows, ignore_index=True).drop(columns="LOO")


def predicted(model: Handle, inputs: Mapping[str, Any], kernel: AttentionFunction) -> Tensor:
    """The predicted classes `(batch,)`."""
    with routed(architecture := describe(model), kernel), torch.no_grad():
        return read(architecture, inputs).target


def compared(rows: pd.DataFrame, method: str) -> dict[str, Estimate]:
    """Mean r of one method with either attention and their paired difference, for rows of one data.

    Intervals are over training seeds and texts at once, as in chapter 2.
    """
    wide = {
        attention: part.pivot(index="seed", columns="id", values=method).to_numpy(float)
        for attention, part in rows.groupby("attention", sort=False)
    }
    wide["difference"] = wide[LINEAR] - wide[SOFTMAX]
    return {name: crossed_estimate(values) for name, values in wide.items()}
