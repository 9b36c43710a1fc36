"""What is found in each model, whatever holds it, and what is passed to it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lrputils as lrp
from lrputils.model.proof import laid_out
from tests import reference, tiny


@pytest.mark.parametrize(("groups", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1])])
def test_albert_counts_calls_of_its_shared_blocks(groups, expected):
    model = tiny.build("albert", num_hidden_layers=4, num_hidden_groups=groups)
    found = laid_out(model)
    assert found.layers == 4
    assert [[*dict.fromkeys(found.blocks)].index(block) for block in found.blocks] == expected


@pytest.mark.parametrize("name", tiny.TEXT_NAMES)
def test_the_models_own_positions_are_known(name):
    model, inputs = tiny.build(name), tiny.texts()
    stray = {"offset_mapping": torch.zeros(3, 7, 2), "labels": None}
    arguments = lrp.describe(model).arguments({**inputs, **stray})
    positions = reference.own_positions(model, inputs["input_ids"])
    with torch.no_grad():
        own = model(**arguments).logits
        given = model(**arguments, position_ids=positions).logits
    if lrp.describe(model).language_model:
        own, given = (x[inputs["attention_mask"].bool()] for x in (own, given))
    assert torch.allclose(own, given, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("bert", "is_decoder", True),
        ("gpt2", "add_cross_attention", True),
        ("gemma3-lm", "final_logit_softcapping", 5.0),
        ("gemma3", "use_bidirectional_attention", True),
    ],
)
def test_a_setting_that_changes_what_is_computed_is_measured_anew(name, setting, value):
    model, inputs = tiny.build(name), tiny.texts()
    plain = lrp.leave_one_out(model, inputs)
    setattr(model.config, setting, value)
    found = lrp.leave_one_out(model, inputs)
    torch.testing.assert_close(found, reference.leave_one_out(model, inputs))
    assert not torch.allclose(found, plain) or name == "gpt2"


def distributed(model):
    """As DistributedDataParallel keeps its model, without a process group."""
    wrapper = type("DistributedDataParallel", (nn.Module,), {})()
    wrapper.module = model
    return wrapper


HANDLES = {
    "classifier": lambda model: lrp.Classifier(model, None, "tiny"),
    "compiled": lambda model: torch.compile(model),
    "data parallel": lambda model: nn.DataParallel(model),
    "distributed": distributed,
    "compiled and distributed": lambda model: torch.compile(distributed(model)),
    "classifier of one": lambda model: lrp.Classifier(torch.compile(model), None, "tiny"),
    "what holds it, as a pipeline does": lambda model: SimpleNamespace(model=model),
}


@pytest.mark.parametrize("wrap", HANDLES.values(), ids=HANDLES)
def test_every_handle_leads_to_the_model(wrap):
    model = tiny.build("bert")
    assert lrp.describe(wrap(model)).model is model
    assert lrp.describe(lrp.describe(model)).model is model
