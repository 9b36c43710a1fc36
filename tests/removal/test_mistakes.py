"""What each verb that removes tokens refuses, by name."""

import pytest
import torch

import lrputils as lrp
from tests import tiny


def curves(model, inputs, **options):
    scores = torch.zeros(inputs["input_ids"].shape)
    return lrp.perturbation_curves(model, inputs, scores, **options)


MISTAKES = {
    lrp.leave_one_out: [
        ({"removal": "erase"}, "'erase' is not one of"),
        ({"output": "logits"}, "'logits' is not one of"),
        ({"removal": "mask"}, r"clf\.encode"),
        ({"batch_tokens": -1}, "batch_tokens=-1"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"target": "positive"}, "'positive' is none of LABEL_0"),
    ],
    curves: [
        ({"chunk": 0}, "chunk=0"),
        ({"chunk": 1.5}, "chunk=1.5"),
        ({"output": "loss"}, "'loss' is not one of"),
        ({"removal": "erase"}, "'erase' is not one of"),
        ({"target": 7}, "target"),
    ],
    lrp.shapley_values: [
        ({"permutations": 5}, "permutations=5 is not an even number from 4 on"),
        ({"permutations": 2}, "permutations=2 is not an even number"),
        ({"permutations": "many"}, "permutations='many' is not an even number"),
        ({"seed": -1}, "seed=-1 is not a whole number"),
        ({"output": "loss"}, "output='loss' is not one of"),
        ({"permutations": "all"}, r"text 1 has 17 units, and so 2\^17 sets"),
    ],
    lrp.METHODS["mask-gradient"].function: [
        ({"form": "second-order"}, "'second-order' is not one of"),
        ({"gate": 0.5}, "pass groups= too"),
        ({"groups": 0}, "groups=0 is not a whole number from 1 on"),
        ({"groups": 2, "batch_tokens": 0}, "batch_tokens=0 is not a whole number"),
        ({"with_open": True}, "with_open=True is about groups: pass groups= too"),
        ({"groups": 2, "gate": 1.5}, "takes gates from 0 to 1"),
        ({"groups": 2, "gate": 0.0, "form": "first-order"}, "takes gates from 1e-06 to 1"),
    ],
    lrp.METHODS["budgeted-loo"].function: [
        ({"budget": 0}, "neither a share of"),
        ({"budget": 1.5}, "nor a number of passes, 3 or more"),
        ({"counted": "w"}, "'w' is"),
    ],
}


@pytest.mark.parametrize(
    ("verb", "options", "message"), [(v, *case) for v, cases in MISTAKES.items() for case in cases]
)
def test_mistakes_are_named(verb, options, message):
    with pytest.raises(ValueError, match=message):
        verb(tiny.build("bert"), tiny.texts((7, 19)), **options)


def test_inputs_say_which_tokens_are_special():
    plain = {name: tiny.texts()[name] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match="do not say which tokens are special"):
        lrp.shapley_values(tiny.build("bert"), plain)
