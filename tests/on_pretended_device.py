"""Every verb and method on a pretended GPU: the same as here. `test_device.py` runs it.

It has a process of its own, in which all models land "on cuda:0": `pytest` does not collect it.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import experiments.linear_attention as la
import lrputils as lrp
from experiments.images import load_images
from lrputils.__main__ import main
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from tests import tiny
from tests.pretended_device import CUDA

TEXTS = ["a film that is never dull", "an unwatchable film"]
METHODS = [*lrp.METHODS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    clf = tiny.classifier()
    return tiny.save(clf, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def both(folder):
    """A model and two texts, there and here."""
    models = [lrp.load_classifier(folder, device=device) for device in ("auto", "cpu")]
    return [(clf, clf.encode(TEXTS)) for clf in models]


def test_it_refuses_what_cuda_refuses():
    there, here = torch.ones(3, device="cuda"), torch.ones(3)
    assert there.device == CUDA
    assert there.is_cuda
    for wrong in (there.numpy, lambda: np.asarray(there), lambda: pd.Series(there)):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
            wrong()
    for mixed in (
        lambda: there + here,
        lambda: there @ here,
        lambda: torch.stack([there, here]),
        lambda: torch.where(here > 0, there, there),
        lambda: here[there > 0],
        lambda: torch.nn.functional.linear(here[None], there[None]),
    ):
        with pytest.raises(RuntimeError, match="found at least two devices"):
            mixed()


def test_it_computes_what_this_machine_computes():
    there = torch.arange(6.0, device="cuda").view(2, 3)
    there.requires_grad_()
    with torch.no_grad():
        column = there.detach().t()[1]
        column += 10  # a view is one
    assert there[0].tolist() == [0, 11, 2]
    product = torch.nn.functional.one_hot(torch.tensor([2, 0], device="cuda"), 3) * there + 1
    (slope,) = torch.autograd.grad(product.sum(), there)
    assert slope.device == CUDA
    assert slope.cpu().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert there[[1, 0]][:, [2]].flatten().tolist() == [5, 2]
    with torch.inference_mode():
        assert (there + torch.eye(3, device=there.device)[:2]).device == CUDA


def assert_same(there, here, tolerance=1e-4):
    """Equal, once fetched: NaN at padding, too."""
    there = there.cpu() if isinstance(there, torch.Tensor) else there
    np.testing.assert_allclose(there, here, atol=tolerance, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_method(method, both):
    there, here = (lrp.attribute(clf, inputs, method) for clf, inputs in both)
    assert there.device == CUDA
    assert_same(there, here)


REMOVALS = ("attention-mask", "mask", "pad", "unk", "zero", "delete")
CALLS = {
    **{
        f"LOO by {removal}": lambda clf, x, how=removal: lrp.leave_one_out(clf, x, removal=how)
        for removal in REMOVALS
    },
    "LOO by words": lambda clf, x: lrp.leave_one_out(clf, x, units="word"),
    "half-removal": lambda clf, x: lrp.attribute(clf, x, "mask-gradient", groups=2, with_open=True),
    "read-outs": lambda clf, x: lrp.attribute(clf, x, "attnlrp", readout="post-norm"),
    "a target": lambda clf, x: lrp.attribute(clf, x, "cp-lrp", target="negative"),
    "a contrast": lambda clf, x: lrp.attribute(
        clf, x, "loo", target=lrp.contrast("negative", "positive")
    ),
    "layers": lambda clf, x: lrp.layerwise_bypass(clf, x, [{0}, range(2)]),
    "curves": lambda clf, x: lrp.perturbation_curves(
        clf, x, torch.ones(x.input_ids.shape, device=clf.device)
    )[0],
    "r": lambda clf, x: lrp.pearson(
        lrp.attribute(clf, x, "attnlrp"), lrp.leave_one_out(clf, x), where=x.content_mask
    ),
    "rank": lambda clf, x: lrp.spearman(
        lrp.attribute(clf, x, "attnlrp"), lrp.leave_one_out(clf, x), where=x.content_mask
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call(call, both):
    there, here = (CALLS[call](*given) for given in both)
    assert_same(there, here)


def test_pairs_of_tokens(both):
    there, here = (lrp.leave_two_out(clf, inputs) for clf, inputs in both)
    assert_same(there.interactions, here.interactions)


@pytest.mark.parametrize("method", ["loo", "attnlrp", "mask-gradient"])
def test_an_answer_of_a_language_model(method):
    scores = []
    for device in ("cuda", "cpu"):
        lm = tiny.language_model()
        lm.model.to(device)
        inputs = lm.encode("the cat is", answer=" a thing").to(device)
        scores.append(lrp.attribute(lm, inputs, method))
    there, here = scores
    assert there.device == CUDA
    assert_same(there, here, 1e-6)


def test_a_network_of_chapter_2_is_trained_there():
    data = load_images("digits", side=4)
    few = {"train_images": data.train_images[:40], "train_labels": data.train_labels[:40]}
    data = replace(data, **few)
    setting = la.Setting("learned", "mean", "unit")
    there, here = (
        la.train(data, setting, 0, epochs=1, device=device).state_dict()
        for device in ("cuda", "cpu")
    )
    for name in here:
        assert_same(there[name], here[name], 1e-5)


def test_explained_and_saved(both, tmp_path):
    (clf, _), _ = both
    shown = lrp.explain(clf, TEXTS[0], [*METHODS])
    assert {"LOO", "AttnLRP"} <= {*shown.to_frame().columns}
    for ending in ("html", "svg", "png"):
        shown.save(tmp_path / f"x.{ending}")


def test_a_run_s_rows(both):
    (there, _), (here, _) = both
    methods = ["attnlrp", "mask-gradient"]
    found, right = (
        lrp.evaluate(clf, lrp.load_texts(TEXTS), methods).rows.r_content for clf in (there, here)
    )
    np.testing.assert_allclose(found, right, atol=1e-3)


VERBS = {
    "explain": ["explain", TEXTS[0], "--out", "x.html"],
    "evaluate": ["evaluate", "--limit", "4", "--methods", "attnlrp,ig", "--out", "rows"],
    "audit": ["audit", "--limit", "4", "--out", "audit"],
    "methods": ["methods"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb(verb, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = [] if verb == "methods" else ["--model", str(folder)]
    assert not main([*VERBS[verb], *model]), capsys.readouterr().err


def test_the_introduction_runs_there():
    """`test_device.py` runs all chapters so, in kernels of their own; that takes minutes."""
    shell = InteractiveShell.instance()
    cells = read_text(find_book().chapter("intro")).cells
    for cell in (cell for cell in cells if cell.cell_type == "code"):
        shell.run_cell(cell.source).raise_error()


def test_a_model_on_two_devices_is_refused_by_name():
    clf = lrp.load_classifier()
    inputs = clf.encode(["a film that is never dull"])
    clf.model.classifier.to("cpu")
    with pytest.raises(ValueError, match="are on cpu, cuda:0, where meta"):
        lrp.leave_one_out(clf, inputs)


def test_maps_on_the_device_are_judged():
    clf, texts = lrp.load_classifier(), TEXTS[:1]
    maps = lrp.attribute(clf, clf.encode(texts), "attnlrp")
    r = lrp.evaluate(clf, texts, ["attnlrp"], scores={"mine": [*maps]}).per_text("r_content")
    np.testing.assert_allclose(r.mine, r.attnlrp, atol=1e-5)
