"""What a correct implementation passes on any model, as a table: a row a model.

The forward pass under rules is the model's own, CP-LRP without biases conserves relevance, and fast
Leave-One-Out equals a plain loop that hides one key at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall, additive, routed
from lrputils.model.families import FAMILIES
from lrputils.model.handles import Handle
from lrputils.model.readout import run
from lrputils.propagation.conservation import TOLERANCE, check
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study import zoo

# Some families' norms compute in float32 in a model of any precision.
ROUNDING = 1e-5
LIMITS = {"logits": 1e-6, "CP-LRP": TOLERANCE, "LOO": ROUNDING}


def of_families() -> pd.DataFrame:
    """`gates` of an untrained small model of every family, on two random texts or images."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, zoo.VOCABULARY, (2, 7), generator=generator)
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    images = zoo.images(2)[0]
    return gates(
        {
            name: (zoo.build(name), images if family.vision else texts)
            for name, family in FAMILIES.items()
        }
    )


def gates(models: Mapping[str, tuple[Handle, Mapping[str, Any]]]) -> pd.DataFrame:
    """Check each model, name → a covered one and encoded texts or images, on its inputs.

    A row a model: `logits`, the largest change of a logit while rules are installed; `CP-LRP`, the
    largest |Σ R / logit − 1| at any layer, without biases; `LOO`, the largest difference from
    `hidden_one_by_one`, relative to the largest score; `AttnLRP`, as CP-LRP at the first layer,
    which need not be small; `passed`, whether the first three keep `LIMITS`.
    """
    rows = {}
    for name, (model, inputs) in models.items():
        report, loo = check(model, inputs), leave_one_out(model, inputs, progress=False)
        off = (loo - hidden_one_by_one(model, inputs)).abs().max() / loo.abs().max()
        rows[name] = {"logits": report.logit_change, "CP-LRP": max(report.gaps), "LOO": float(off)}
        rows[name]["passed"] = all(rows[name][gate] <= most for gate, most in LIMITS.items())
        rows[name]["AttnLRP"] = report.attnlrp_gap
    return pd.DataFrame.from_dict(rows, orient="index")


@torch.no_grad()
def hidden_one_by_one(model: Handle, inputs: Mapping[str, Any]) -> Tensor:
    """LOO by its definition: for each token a forward pass in which no query sees its key.

    Of the class predicted on the whole input, `(batch, tokens)`, 0 at padding.
    """
    architecture = describe(model)
    arguments = architecture.arguments(inputs)
    whole = run(architecture, arguments)
    target, tokens = whole.argmax(1, keepdim=True), 0

    def hiding(call: AttentionCall, token: int | None = None) -> tuple[Tensor, None]:
        nonlocal tokens
        tokens = call.key.shape[2]
        scores = call.scores() + additive(call.mask, call.query.dtype)
        seen = call.seen().clone()
        if token is not None:
            seen[..., token] = False
        # A query that sees nothing gets zeros, as from the fused kernel.
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        return call.combined(weights), None

    with routed(architecture, hiding):
        run(architecture, arguments)
    scores = []
    for token in range(tokens):
        with routed(architecture, lambda call, token=token: hiding(call, token)):
            scores.append(whole - run(architecture, arguments))
    return torch.stack([score.gather(1, target)[:, 0] for score in scores], 1)
