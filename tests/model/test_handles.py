"""Whatever holds a model stands for it, and what does not is refused with the word that helps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lrputils as lrp
from lrputils.removal.mask_gradient import mask_gradient
from recipes.recordings.softmax import softmax_maps
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


def propagated(model, inputs):
    with lrp.propagating(model, lrp.CP_LRP) as architecture:
        return lrp.attribute(architecture, inputs, "grad-x-input")


SCORES = torch.arange(21.0).reshape(3, 7)
FUNCTIONS = {
    "leave_one_out": lrp.leave_one_out,
    "mask_gradient": mask_gradient,
    "layerwise_bypass": lambda m, x: lrp.layerwise_bypass(m, x, [{0}]),
    "relevance_paths": lrp.relevance_paths,
    "softmax_maps": lambda m, x: softmax_maps(m, x)["removal"],
    "perturbation_curves": lambda m, x: lrp.perturbation_curves(m, x, SCORES).lerf,
    "propagating": propagated,
    "check": lambda m, x: torch.tensor(lrp.check(m, x).gaps),
} | {name: lambda m, x, name=name: lrp.attribute(m, x, name) for name in lrp.METHODS}


@pytest.mark.parametrize("wrap", HANDLES.values(), ids=HANDLES)
def test_every_handle_leads_to_the_model(wrap):
    model = tiny.build("bert")
    assert lrp.describe(wrap(model)).model is model
    assert lrp.describe(lrp.describe(model)).model is model


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_takes_a_handle(function):
    model, inputs = tiny.build("bert"), tiny.texts()
    handle = lrp.Classifier(nn.DataParallel(model), None, "tiny")
    found = function(handle, inputs)
    torch.testing.assert_close(found, function(model, inputs), rtol=0, atol=0, equal_nan=True)


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


class Wrapped(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (adapted, "adapter.*merge_and_unload()"),
        (lambda model: torch.compile(adapted(model)), "adapter.*merge_and_unload()"),
        (injected, "adapter at 'bert.encoder.layer.0.*merge_and_unload()"),
        (lambda model: "minilm", "'minilm' is the name of a model: pass load_classifier"),
        (Wrapped, "Wrapped is not a transformers model.*If it wraps one, pass that"),
        (lambda model: {"model": model}, "dict is not a transformers model"),
        (lambda model: lrp.Classifier(adapted(model), None, "tiny"), "merge_and_unload"),
    ],
)
def test_what_cannot_be_unwrapped_is_refused_with_the_way_out(wrap, words):
    with pytest.raises(TypeError, match=words.replace("()", r"\(\)")):
        lrp.attribute(wrap(tiny.build("bert")), tiny.texts(), "cp-lrp")
