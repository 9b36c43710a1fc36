"""The recipe of the twelve-layer classifiers: what is merged, and that another file is refused."""

import pytest
import torch
from safetensors.torch import save_file

import lrputils as lrp
from experiments.command import run_alone
from experiments.mpnet import __main__ as recipe
from tests import tiny


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    model = tiny.build("mpnet", dtype=torch.float32).mpnet
    model.save_pretrained(folder)
    lrp.load_classifier().tokenizer.save_pretrained(folder)
    return folder, model


def test_every_adapter_is_merged_and_the_head_copied(base, tmp_path):
    folder, model = base
    name, head = "mpnet.encoder.layer.0.attention.attn.q", "classifier.h.out_proj.bias"
    weight = model.get_submodule(name.removeprefix("mpnet.")).weight.detach()
    rows, columns = weight.shape
    torch.manual_seed(0)
    adapter = {
        f"{name}.A": torch.randn(2, columns).half(),
        f"{name}.B": torch.randn(rows, 2).half(),
    }
    adapter[head] = torch.tensor([3.0, -1.0])
    save_file(adapter, tmp_path / "adapter.safetensors")
    out = recipe.assemble(folder, tmp_path / "adapter.safetensors", tmp_path / "out")
    found = lrp.load_classifier(out).model
    a, b = adapter[f"{name}.A"].double(), adapter[f"{name}.B"].double()
    change = torch.stack([2 * (b[row][:, None] * a).sum(0) for row in range(rows)])
    assert torch.equal(found.get_submodule(name).weight, (weight.double() + change).float())
    assert found.classifier.out_proj.bias.tolist() == [3, -1]
    other = "encoder.layer.0.attention.attn.k"
    assert torch.equal(found.mpnet.get_submodule(other).weight, model.get_submodule(other).weight)
    assert found.config.id2label == {0: "negative", 1: "positive"}


def test_another_base_is_refused(base, tmp_path):
    words = ["sst2", str(tmp_path / "out"), "--base", str(base[0])]
    with pytest.raises(ValueError, match="the recorded runs used 78c0197b"):
        run_alone(recipe.make, words, prog="mpnet")
    assert not (tmp_path / "out").exists()
