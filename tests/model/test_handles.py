"""Whatever holds a model stands for it, and what does not is refused with the word that helps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lrputils as lrp
from tests import tiny


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


def adapted(model):
    """As `peft.get_peft_model` wraps a model; PEFT itself is not needed for its name."""
    kind = type(
        "PeftModelForSequenceClassification", (nn.Module,), {"__module__": "peft.peft_model"}
    )
    wrapper = kind()
    wrapper.base_model = model
    return wrapper


def injected(model):
    kind = type("Linear", (nn.Module,), {"__module__": "peft.tuners.lora.layer"})
    model.bert.encoder.layer[0].attention.self.query = kind()
    return model


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (adapted, "adapter.*merge_and_unload()"),
        (lambda model: torch.compile(adapted(model)), "adapter.*merge_and_unload()"),
        (injected, "adapter at 'bert.encoder.layer.0.*merge_and_unload()"),
        (lambda model: "minilm", "'minilm' is the name of a model: pass load_classifier"),
        (nn.Sequential, "Sequential is not a transformers model.*If it wraps one, pass that"),
        (lambda model: {"model": model}, "dict is not a transformers model"),
        (lambda model: lrp.Classifier(adapted(model), None, "tiny"), "merge_and_unload"),
    ],
)
def test_what_cannot_be_unwrapped_is_refused_with_the_way_out(wrap, words):
    with pytest.raises(TypeError, match=words.replace("()", r"\(\)")):
        lrp.attribute(wrap(tiny.build("bert")), tiny.texts(), "cp-lrp")
