"""The recorded ε-rule: against the explicit rules at ε > 0, at ε = 0, and its rows."""

import pytest

from experiments.recordings import epsilon as recipe
from lrputils.propagation.composites import ATTN_LRP, CP_LRP
from tests import reference, tiny

REFERENCE = {"attnlrp": ATTN_LRP, "cp": CP_LRP}


@pytest.mark.parametrize(("length", "eps"), [(1, 1e-4), (5, 1e-9), (5, 0.3)])
@pytest.mark.parametrize("rule", REFERENCE)
def test_a_whole_bert_equals_the_explicit_rules(length, rule, eps):
    model = tiny.build("bert", seed=length)
    inputs = tiny.texts((length,), seed=length)
    fast = recipe._epsilon_lrp(model, inputs, target=1, composite=REFERENCE[rule], epsilon=eps)
    _, slow = reference.bert(model, inputs["input_ids"][0], 1, lambda layer: rule, eps)
    _, without = reference.bert(model, inputs["input_ids"][0], 1, lambda layer: rule, 0.0)
    gap = float((fast["word"][0] - slow).abs().max())
    assert gap <= 1e-10 * max(1.0, float(slow.abs().max()))
    assert gap < 1e-3 * float((slow - without).abs().max())  # ε has an effect, and it is this one


def test_the_model_is_left_as_it_was_and_others_are_refused():
    model, inputs = tiny.build("bert"), tiny.texts()
    recipe._epsilon_lrp(model, inputs, composite=ATTN_LRP, epsilon=1e-2)
    assert not any("forward" in part.__dict__ for part in model.modules())
    with pytest.raises(ValueError, match=r"GPT2.*before its sums"):
        recipe._epsilon_lrp(tiny.build("gpt2"), inputs, composite=ATTN_LRP, epsilon=1e-2)
