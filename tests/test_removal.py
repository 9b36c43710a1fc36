"""Leave-one-out against a slow reference: one forward pass a token, with a full mask."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lrputils import removal, rows
from lrputils.architectures import describe
from lrputils.inputs import Inputs
from lrputils.removal import leave_one_out

CLASSIFIERS = tuple(name for name in tiny.TEXT_NAMES if not name.endswith("-lm"))


def logits_of(model, inputs, row):
    """The model's own logits of one text alone; a next-token model's at its last token."""
    with torch.no_grad():
        logits = model(**describe(model).arguments(tiny.row(inputs, row))).logits[0]
    return logits if logits.dim() == 1 else logits[-1]


def full_mask(architecture, length, token, dtype):
    """Additive (1, 1, queries, keys): what each query may see when no one may see `token`."""
    seen = torch.ones(length, length, dtype=torch.bool)
    if architecture.causal:
        seen = seen.tril()
    seen[:, token] = False
    return torch.zeros(1, 1, length, length, dtype=dtype).masked_fill(~seen, -torch.inf)


def slow_without(model, inputs, row, token):
    """Logits of one text when `token` is masked as a key, everywhere, by a 4-D mask.

    A decoder's rows that lose their only key are not read by anyone but are NaN under the softmax:
    they are let see themselves, unless they are the row that is read.
    """
    architecture = describe(model)
    one = tiny.row(inputs, row)
    length = one["input_ids"].shape[1]
    dtype = next(model.parameters()).dtype
    mask = full_mask(architecture, length, token, dtype)
    for query in range(length):
        if torch.isinf(mask[0, 0, query]).all():
            mask[0, 0, query, query] = 0
    with torch.no_grad():
        logits = model(input_ids=one["input_ids"], attention_mask=mask).logits[0]
    return logits if logits.dim() == 1 else logits[-1]


def slow_leave_one_out(model, inputs):
    scores = torch.zeros(inputs["input_ids"].shape, dtype=torch.float64)
    for row, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        whole = logits_of(model, inputs, row)
        target = whole.argmax()
        for token in range(length):
            scores[row, token] = whole[target] - slow_without(model, inputs, row, token)[target]
    return scores


@pytest.mark.parametrize("name", tiny.TEXT_NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_equals_masking_one_key_at_a_time(name, dtype, tolerance):
    model = tiny.build(name, dtype=dtype)
    inputs = tiny.texts((7, 4, 5, 7, 3))
    fast = leave_one_out(model, inputs)
    slow = slow_leave_one_out(model, inputs)
    assert fast.dtype == dtype
    assert slow.abs().max() > 1e-3
    torch.testing.assert_close(fast.double(), slow, rtol=tolerance, atol=tolerance)
