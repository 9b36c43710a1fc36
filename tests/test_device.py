"""What has to hold on a GPU before its speed counts; without one, the same on the CPU.

`pytest tests/test_device.py`, then `python -m experiments.bench --device cuda`, which compares
outputs too.
"""

import copy
from functools import partial

import pytest
import torch

import lrputils as lrp
from experiments import zoo
from experiments.bench import untrained
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.variants import layer_sets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKS = {
    "LOO": leave_one_out,
    "LOO, a row at a time": partial(leave_one_out, batch_tokens=1),
    "ablations": partial(layerwise_bypass, layer_sets=[*layer_sets(2).values()]),
    **{n: partial(lrp.attribute, method=n) for n in ("attnlrp", "cp-lrp", "mask-gradient")},
}


@pytest.fixture(scope="module")
def reviews():
    return lrp.load_classifier(device="cpu").encode(lrp.load_texts("reviews", limit=48, seed=0))


@pytest.mark.parametrize("work", [*WORKS, "LOO of a decoder"])
def test_a_device_agrees_with_the_cpus_float64(work, reviews):
    texts, model = reviews.rows(range(16)), untrained(2, 96).model
    given = {name: texts[name] for name in ("input_ids", "attention_mask")}
    if work == "LOO of a decoder":
        model = zoo.build("gpt2").float()
        given["input_ids"] = given["input_ids"] % zoo.VOCABULARY
    function = WORKS.get(work, leave_one_out)
    right = function(copy.deepcopy(model).double(), given)
    there = {name: tensor.to(DEVICE) for name, tensor in given.items()}
    found = function(copy.deepcopy(model).to(DEVICE), there).cpu()
    assert float((found - right).abs().max() / right.abs().max()) <= 1e-4
