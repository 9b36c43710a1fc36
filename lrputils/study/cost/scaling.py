"""Leave-one-out's operations against the clock, and texts a second of every method."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.cost.clock import timed
from lrputils.study.cost.operations import Shape, matrix_rate, untrained
from lrputils.study.cost.sides import alone

_METHODS = ("loo", "attnlrp", "cp-lrp", "mask-gradient", "ig")


def scores(classifier: Classifier, inputs: Inputs, method: str = "loo") -> Tensor:
    """A method's scores of the texts' tokens, special ones included, text after text."""
    found = attribute(classifier.model, inputs, method)
    return found[inputs.valid_mask]


def one_by_one(classifier: Classifier, inputs: Inputs, method: str) -> Tensor:
    """The same, a text at a time."""
    return torch.cat([scores(classifier, text, method) for text in alone(inputs)])


def model_against_clock(
    classifier: Classifier,
    text: str,
    *,
    lengths: tuple[int, ...] = (16, 32, 64, 128, 192),
    depths: tuple[int, ...] = (2, 4, 6, 8, 12),
    widths: tuple[int, ...] = (192, 384, 768),
    budgets: tuple[int, ...] = (64, 256, 1024, 4096, 16384),
    middle: int = 64,
    repeats: int = 2,
) -> pd.DataFrame:
    """Time leave-one-out of one text while one thing varies: length, depth, width, batch budget.

    Depths and widths are those of untrained BERTs; lengths that the text does not reach are left
    out, and `middle` tokens hold where another thing varies. A row a measurement: `varied`,
    `value`, `tokens`, `seconds` (the fastest), `operations` as `Shape.loo` counts them, and `rate`,
    the machine's on matrices of that width.
    """
    given, device = Shape.of(classifier), str(classifier.device)
    plan = [("tokens", tokens, classifier, tokens, None) for tokens in lengths]
    for layers in depths:
        deep = untrained(layers, given.hidden, device=device)
        plan.append(("layers", layers, deep, middle, None))
    for hidden in widths:
        wide = untrained(given.layers, hidden, device=device)
        plan.append(("width", hidden, wide, middle, None))
    plan += [("tokens a batch", budget, classifier, middle, budget) for budget in budgets]
    rates, rows = {}, []
    for varied, value, model, tokens, budget in plan:
        inputs, shape = model.encode([text], tokens, truncate=True), Shape.of(model)
        if int(inputs.lengths) < tokens:
            continue
        if shape.hidden not in rates:
            rates[shape.hidden] = matrix_rate(model)
        row = {"varied": varied, "value": value, "tokens": tokens}
        row |= {"operations": float(shape.loo(tokens)), "rate": rates[shape.hidden]}
        options = {"batch_tokens": budget, "progress": False}
        rows.append({**row, "work": partial(leave_one_out, model.model, inputs, **options)})
    # In rounds, so that a slow minute of the machine meets every row alike.
    rounds = [[timed(device, row["work"])[0] for row in rows] for _ in range(repeats + 1)]
    return pd.DataFrame(rows).drop(columns="work").assign(seconds=np.min(rounds, axis=0))


def throughput(classifier: Classifier, texts: Mapping[str, Inputs]) -> pd.DataFrame:
    """Time each method a text at a time: a row a kind of texts and method, `seconds` a text.

    The faster of two runs counts.
    """
    rows = []
    for kind, inputs in texts.items():
        for method in _METHODS:
            work = partial(one_by_one, classifier, inputs, method)
            taken = min(timed(classifier.device, work)[0] for _ in range(2))
            row = {"texts": kind, "method": method, "seconds": taken / len(inputs.lengths)}
            rows.append({**row, "tokens": float(inputs.lengths.float().mean())})
    return pd.DataFrame(rows)
