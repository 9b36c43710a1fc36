"""The check that users run on their own model."""

import pytest
import torch
from torch import nn

import lrputils as lrp
from tests import tiny


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_covered_model_passes(name):
    model = tiny.build(name, dtype=torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = lrp.check(model)
    assert report.passed
    assert max(report.words, *report.gaps) < 1e-5
    assert report.logit_change <= 1e-6
    assert report.attnlrp_gap > 1e-3
    assert type(model).__name__ in str(report)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_the_report_says_where_relevance_is_lost():
    wrong = lrp.CP_LRP.but(layers={1}, norm="gradient")
    report = lrp.check(tiny.build("bert"), tiny.texts(), target=[0, 1, 2], composite=wrong)
    assert not report.passed
    assert report.gaps[2] < lrp.check(tiny.build("bert")).tolerance < report.gaps[1]
    lines = str(report).splitlines()
    assert "not conserved" in next(line for line in lines if "layer   1" in line)
    assert "not conserved" not in next(line for line in lines if "layer   2" in line)


def test_a_head_of_the_users_own_made_of_known_parts():
    model = tiny.build("bert", dtype=torch.float32)
    model.classifier = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    assert lrp.check(model).passed
    model.classifier[1] = nn.Sigmoid().eval()
    assert not lrp.check(model).passed
    with pytest.raises(TypeError, match=r"loses or makes.*sigmoid"):
        lrp.attribute(model, tiny.texts(), "attnlrp")
