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
