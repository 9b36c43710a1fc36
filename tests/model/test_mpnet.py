"""MPNet's relative positions: the model's own where nothing is missing, the tokens' own after."""

from __future__ import annotations

import torch

import lrputils as lrp
from lrputils.model.forwards import replaced
from lrputils.model.mpnet import at_positions
from tests import tiny


def test_positions_in_a_row_give_the_models_own_biases():
    model, inputs = tiny.build("mpnet"), tiny.texts()
    architecture = lrp.describe(model)
    arguments, encoder = architecture.arguments(inputs), architecture.backbone.encoder
    plain = model(**arguments).logits
    positions = architecture.position_ids(inputs["input_ids"], inputs["attention_mask"])
    for shift, same in ((0, True), (5, True), (positions, False)):
        with replaced({encoder: at_positions(encoder, positions + shift)}):
            found = model(**arguments).logits
        assert torch.allclose(found, plain, rtol=0, atol=1e-12) == same


def test_a_deleted_token_leaves_a_gap_unless_positions_are_counted_anew():
    model, inputs = tiny.build("mpnet"), tiny.texts((6,))
    gap = lrp.leave_one_out(model, inputs, target=0)
    closed = lrp.leave_one_out(model, inputs, target=0, removal="delete")
    whole, left = inputs["input_ids"], [0, 1, 3, 4, 5]
    with torch.no_grad():
        mask = torch.ones(1, 6).index_fill(1, torch.tensor(2), 0)
        masked = model(input_ids=whole, attention_mask=mask).logits[0, 0]
        shorter = model(input_ids=whole[:, left]).logits[0, 0]
        full = model(input_ids=whole).logits[0, 0]
    torch.testing.assert_close(gap[0, 2], full - masked)
    torch.testing.assert_close(closed[0, 2], full - shorter)
    assert abs(float(masked - shorter)) > 1e-6
