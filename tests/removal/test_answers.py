"""Leave-one-out of an answer, against one plain forward pass a unit."""

import pytest
import torch

import lrputils as lrp
from lrputils.model.readout import ANSWER_OUTPUTS
from lrputils.removal import packing
from tests import reference, tiny
from tests.removal.test_beginnings import whole_rows

MODELS = tuple(name for name in tiny.NAMES if name.endswith("-lm"))
TEXTS = ("Is this a film? It is the one.", "A dog")
ANSWERS = (" the end", " is")
CHATS = (
    [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Is it the end? No."}],
    [{"role": "user", "content": "Hm."}],
)


def said(logits, answer, output="log-probability"):
    """What the logits `(tokens, vocabulary)` of a text say of the tokens that it ends in."""
    logits = logits[-len(answer) - 1 : -1]
    own = logits.gather(1, answer[:, None])[:, 0]
    if output == "log-probability":
        return own - logits.logsumexp(1)
    best = logits.scatter(1, answer[:, None], -torch.inf).max(1).values
    return own - best if output == "contrast" else own


def slow(clf, inputs, units="token", output="log-probability", removal="attention-mask"):
    """(batch, answer tokens, tokens)."""
    answers = inputs["answer_mask"].bool()
    numbers = inputs.units(units).numbers
    if units == "token":  # the template's too, and not the answer's
        numbers = torch.arange(numbers.shape[1]).expand_as(numbers)
        numbers = numbers.masked_fill(~inputs.valid_mask | answers, -1)
    scores = torch.zeros(len(numbers), int(answers.sum(1).max()), numbers.shape[1]).double()
    for row, own in enumerate(answers):
        answer = inputs["input_ids"][row, own]
        whole = said(reference.without(clf.model, inputs, row, every=True), answer, output)
        for unit in range(int(numbers[row].max()) + 1):
            gone = (numbers[row] == unit).nonzero().flatten().tolist()
            left = reference.without(clf.model, inputs, row, gone, removal, every=True)
            scores[row, : len(answer), gone[0]] = whole - said(left, answer, output)
    return scores


@pytest.fixture(params=["whole rows", "shared beginnings"])
def beginnings(request, monkeypatch):
    monkeypatch.setitem(packing.PASS, "cpu", 5)
    if request.param == "whole rows":
        monkeypatch.setattr(packing, "usable", whole_rows)


FEW = [(CHATS, {"units": "word"}), (TEXTS, {"removal": "delete"})]
MORE = [
    (CHATS, {}),
    (CHATS, {"units": "message"}),
    (CHATS, {"units": "sentence", "output": "contrast"}),
    (TEXTS, {"units": "word", "output": "logit"}),
    (CHATS, {"removal": "delete", "units": "sentence"}),
]
CASES = [(name, *case) for name in MODELS for case in FEW + MORE * (name == "llama-lm")]


@pytest.mark.parametrize(("name", "texts", "options"), CASES)
def test_equals_one_plain_pass_a_unit(name, texts, options, beginnings):
    clf = tiny.language_model(name)
    inputs = clf.encode(list(texts), answer=ANSWERS)
    expected = slow(clf, inputs, **options)
    assert expected.abs().max() > 1e-3
    for budget in (20, 2_048):
        found = lrp.leave_one_out(clf, inputs, per_token=True, batch_tokens=budget, **options)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(lrp.leave_one_out(clf, inputs, **options), expected.sum(1))


WINDOWS = [("mistral-lm", 9), ("gemma3-lm", 9)]


@pytest.mark.parametrize(
    ("name", "window", "implementation"),
    [("llama-lm", None, "sdpa")]
    + [(name, window, how) for name, window in WINDOWS for how in ("eager", "sdpa")],
)
def test_in_float32_with_windows_and_either_attention(name, window, implementation):
    """Texts and answers of several lengths in a batch, to 1e-4 of the largest score."""
    how = {} if window is None else {"sliding_window": window}
    clf = tiny.language_model(name, dtype=torch.float32, **how)
    clf.model.set_attn_implementation(implementation)
    inputs = clf.encode(list(CHATS), answer=ANSWERS)
    for options in ({"units": "token"}, {"units": "sentence"}, {"removal": "delete"}):
        found = lrp.leave_one_out(clf, inputs, per_token=True, **options)
        expected = slow(clf, inputs, **options).float()
        assert (found - expected).abs().max() < 1e-4 * expected.sum(1).abs().max()
        whole = lrp.leave_one_out(clf, inputs, **options)
        assert (found.sum(1) - whole).abs().max() < 1e-5


def test_a_model_without_rules():
    own = tiny.byte_tokenizer()
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape |= {"vocab_size": len(own), "intermediate_size": 24, "initializer_range": 0.4}
    clf = lrp.load_classifier(tiny.made("GPTNeoX", "ForCausalLM", **shape).double(), own)
    inputs = clf.encode(list(CHATS), answer=ANSWERS)
    for removal in ("attention-mask", "delete"):
        found = lrp.leave_one_out(clf, inputs, per_token=True, removal=removal)
        torch.testing.assert_close(found, slow(clf, inputs, removal=removal))
    assert lrp.attribute(clf, inputs, "ig", baseline=5).abs().max() > 1e-3


@pytest.mark.parametrize("output", ANSWER_OUTPUTS)
def test_methods_explain_what_leave_one_out_does(output):
    """Gradient × input, against the gradient of what a plain pass says of the answer."""
    clf = tiny.language_model("llama-lm")
    inputs = clf.encode(list(CHATS), answer=ANSWERS)
    answer, ids = inputs["answer_mask"].bool(), inputs["input_ids"]
    expected = torch.zeros(ids.shape, dtype=torch.float64)
    for row, length in enumerate(inputs.lengths.tolist()):
        x = clf.model.get_input_embeddings()(ids[row, :length]).requires_grad_()
        f = said(clf.model(inputs_embeds=x[None]).logits[0], ids[row, answer[row]], output).sum()
        expected[row, :length] = (torch.autograd.grad(f, x)[0] * x).sum(-1).detach()
    expected = expected.masked_fill(answer, 0)
    found = lrp.attribute(clf, inputs, "grad-x-input", target=output)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)


def test_every_method_takes_answers_and_leaves_them_without_scores():
    clf = tiny.language_model("qwen3-lm")
    inputs = clf.encode(list(CHATS), answer=ANSWERS)
    own = inputs.valid_mask & ~inputs["answer_mask"].bool()
    for name in lrp.METHODS:
        options = {"permutations": 4} if name == "shapley" else {}
        options |= {"baseline": 5, "steps": 4} if name == "ig" else {}
        scores = lrp.attribute(clf, inputs, name, **options)
        assert scores.shape == own.shape
        assert bool((scores[~own] == 0).all()), name
        assert bool((scores[own] != 0).any(0).any()), name
        alone = lrp.attribute(clf, inputs.rows(1), name, **options)
        torch.testing.assert_close(scores[1:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2-lm", "qwen2-lm"])
def test_the_mask_gradient_is_the_derivative_at_a_gate(name):
    """First order: a gate's logarithm is a summand of its key's scores.

    For the queries of all other tokens, and of the one that the answer's first token is read at.
    """
    clf = tiny.language_model(name)
    inputs = clf.encode([CHATS[1]], answer=ANSWERS[0])
    ids, size = inputs["input_ids"][0], int(inputs["answer_mask"].sum())
    gates = torch.zeros(len(ids), dtype=torch.float64, requires_grad=True)
    others = 1 - torch.eye(len(ids), dtype=torch.float64)
    others[len(ids) - size - 1] = 1
    mask = (torch.ones(len(ids), len(ids), dtype=torch.float64).tril().log() + gates * others)[None]
    words = clf.model.get_input_embeddings()(ids)[None]
    logits = clf.model(inputs_embeds=words, attention_mask=mask[None]).logits[0, -size - 1 : -1]
    f = logits.log_softmax(1).gather(1, ids[-size:, None]).sum()
    expected = torch.autograd.grad(f, gates)[0].masked_fill(inputs["answer_mask"][0].bool(), 0)
    found = lrp.attribute(clf, inputs, "mask-gradient", form="first-order")[0]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-5)
