"""What has to hold on a GPU before its speed counts; without one, the same on the CPU.

`pytest tests/test_device.py`, then `python -m experiments.bench --device cuda`, which compares
outputs too. That scores stand on a GPU is tried on a pretended one (`pretended_device.py`), in a
process of its own, since there is no way back; a kernel runs it at its start.
"""

import copy
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import lrputils as lrp
from experiments import zoo
from experiments.bench import untrained
from lrputils.book.execution import execute
from lrputils.book.layout import find_book
from lrputils.book.parameters import load_parameters
from lrputils.study.variants import layer_sets

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKS = {
    "LOO": lrp.leave_one_out,
    "LOO, a row at a time": partial(lrp.leave_one_out, batch_tokens=1),
    "ablations": partial(lrp.layerwise_bypass, layer_sets=[*layer_sets(2).values()]),
    **{n: partial(lrp.attribute, method=n) for n in ("attnlrp", "cp-lrp", "mask-gradient")},
}


@pytest.fixture(scope="module")
def reviews():
    return lrp.load_classifier(device="cpu").encode(lrp.load_texts("reviews", limit=48, seed=0))


@pytest.mark.parametrize("work", [*WORKS, "LOO of a decoder"])
def test_a_device_agrees_with_the_cpus_float64(work, reviews):
    texts, model = reviews.rows(range(6)), untrained(2, 96).model
    given = {name: texts[name] for name in ("input_ids", "attention_mask")}
    if work == "LOO of a decoder":
        model = zoo.build("gpt2").float()
        given["input_ids"] = given["input_ids"] % zoo.VOCABULARY
    function = WORKS.get(work, lrp.leave_one_out)
    right = function(copy.deepcopy(model).double(), given)
    there = {name: tensor.to(DEVICE) for name, tensor in given.items()}
    found = function(copy.deepcopy(model).to(DEVICE), there).cpu()
    assert float((found - right).abs().max() / right.abs().max()) <= 1e-4


HERE = Path(__file__).parent
CHAPTERS = [p.stem for p in sorted((HERE.parent / "chapters").glob("*.ipynb"))]
START = "from tests.pretended_device import install; install(); import pytest; import sys; "
RUN = "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-W', 'ignore', *sys.argv[1:]]))"


LONG = "test_a_verb[audit]"  # minutes on a device that only pretends; chapter 10 is one, too


@pytest.mark.parametrize(
    "chosen", ["--deselect", pytest.param("", id="audit", marks=pytest.mark.rehearsal)]
)
def test_every_verb_and_method_runs_there(chosen):
    tests = f"{HERE / 'on_pretended_device.py'}"
    which = [chosen, f"on_pretended_device.py::{LONG}", tests] if chosen else [f"{tests}::{LONG}"]
    plain = ["--noconftest", "--rootdir", str(HERE), "-c", os.devnull]
    run = subprocess.run(
        [sys.executable, "-c", START + RUN, *plain, *which],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


@pytest.mark.rehearsal
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_runs_there(chapter, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSTARTUP", str(HERE / "pretended_device.py"))
    book = find_book()
    execute(book, {chapter: load_parameters(book, "smoke").get(chapter, {})}, out=tmp_path)
