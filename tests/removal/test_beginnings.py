"""Beginnings that rows share, against rows that run whole and against masking one key at a time."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lrputils as lrp
from lrputils.model.attention import fused
from lrputils.model.operations import routed
from lrputils.removal import packing
from lrputils.removal.coalitions import REMOVALS
from lrputils.removal.leave_one_out import leave_one_out
from tests import tiny

DECODERS = tuple(n for n in tiny.TEXT_NAMES if lrp.describe(tiny.build(n)).causal)
LENGTHS = (9, 4, 2, 16, 9)


def whole_rows(architecture, text, original=packing.usable):
    """In the place of `packing.usable`: the same, and rows share no beginnings."""
    laid_out, using = original(architecture, text)
    return laid_out, using._replace(shares=False)


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """The rows of each batch behind beginnings, in models so small that few would be."""
    monkeypatch.setitem(packing.PASS, "cpu", 5)
    batches = []

    def spy(self, rows, device, original=packing._Beginnings.__call__):
        batches.append(len(rows))
        return original(self, rows, device)

    monkeypatch.setattr(packing._Beginnings, "__call__", spy)
    return batches


def encoded(lengths=LENGTHS):
    replacements = {"mask": tiny.MASK, "pad": tiny.PAD, "unk": 30}
    return lrp.Inputs(tiny.texts(lengths), replacements=replacements)


def whole(monkeypatch, *args, **options):
    """Leave-one-out without beginnings."""
    with monkeypatch.context() as patched:
        patched.setattr(packing, "usable", whole_rows)
        return leave_one_out(*args, **options)


@pytest.mark.parametrize(
    ("name", "removal"), tiny.cases(REMOVALS, ("attention-mask", "delete"), DECODERS)
)
def test_equals_whole_rows_for_every_removal_and_budget(name, removal, shared, monkeypatch):
    alone = () if removal == "delete" else (1,)
    model, inputs = tiny.build(name), encoded((*LENGTHS, *alone))
    leave_one_out(model, inputs, removal=removal)  # a model is measured once
    shared.clear()
    expected = whole(monkeypatch, model, inputs, removal=removal)
    assert not shared
    for budget in (9, 2_048):
        found = leave_one_out(model, inputs, removal=removal, batch_tokens=budget)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert shared


def operations(work, *args, **options):
    with FlopCounterMode(display=False) as counted:
        work(*args, **options)
    return counted.get_total_flops()


def test_it_saves_two_fifths_of_the_operations(monkeypatch):
    model, inputs = tiny.build("llama"), encoded((30, 28, 29, 30))
    plain = operations(whole, monkeypatch, model, inputs)
    assert operations(leave_one_out, model, inputs) < 0.6 * plain


class WordsRead(TorchDispatchMode):
    """How many tokens' word embeddings are looked up."""

    def __init__(self, embeddings):
        super().__init__()
        self.embeddings, self.words = embeddings, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten.embedding.default and args[0] is self.embeddings:
            self.words += args[1].numel()
        return operation(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["llama-lm", "gpt2-lm"])
def test_the_beginning_of_a_prompt_is_read_once(name):
    """Beside the whole text, only what stands behind each removed token goes through the model."""
    clf = tiny.language_model(name)
    inputs = clf.encode("Is it the end? No. It is a film.", answer=" is the end")
    leave_one_out(clf, inputs)  # a model is measured once
    answer = int(inputs["answer_mask"].sum())
    tokens = inputs.lengths.item() - 1  # of an answer the last token is never read
    first = tokens - answer  # where the answer's first token is predicted
    with WordsRead(clf.model.get_input_embeddings().weight) as read:
        leave_one_out(clf, inputs, batch_tokens=1)
    behind = sum(tokens - 1 - place for place in range(first))
    assert read.words == tokens + behind + answer  # the prompt's last token stays, and is hidden


def test_beginnings_too_large_for_the_memory_are_done_without(shared, monkeypatch):
    model, inputs = tiny.build("gpt2"), encoded()
    expected = whole(monkeypatch, model, inputs)

    def fails(*args, original=packing.logits_of):
        if len(args) > 5:  # by shared beginnings
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(*args)

    monkeypatch.setattr(packing, "logits_of", fails)
    torch.testing.assert_close(leave_one_out(model, inputs), expected, rtol=1e-10, atol=1e-10)
    assert shared


def test_not_for_encoders_windows_and_models_with_a_rule(shared):
    windowed, model = tiny.build("mistral", sliding_window=8), tiny.build("llama")
    for _ in ("it is measured", "and known"):
        shared.clear()
        leave_one_out(tiny.build("bert"), encoded())
        leave_one_out(windowed, encoded())
        with routed(model, fused):
            leave_one_out(model, encoded())
    assert not shared
