"""`explain` of a chat: the given answer, or the model's own, and the same from a shell."""

import json
import math

import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from tests import tiny

CHAT = [{"role": "user", "content": "Is it the end? No."}, {"role": "assistant", "content": "Hm."}]


@pytest.fixture(scope="module")
def clf():
    return tiny.speaking()


def greedy(clf, chat, most):
    ids = clf.encode(chat)["input_ids"]
    said = []
    while len(said) < most and clf.tokenizer.eos_token_id not in said:
        logits = clf.model(ids).logits[0, -1]
        logits[clf.model.generation_config.suppress_tokens] = -torch.inf
        said.append(int(logits.argmax()))
        ids = torch.cat([ids, torch.tensor([said[-1:]])], 1)
    return clf.tokenizer.decode(said, skip_special_tokens=True).strip()


def test_an_answer_is_shown_over_its_prompt(clf):
    shown = lrp.explain(clf, CHAT, answer="the end", units="message")
    inputs = clf.encode(CHAT, answer="the end")
    loo = lrp.leave_one_out(clf, inputs, units="message")[0].tolist()
    assert shown.maps["LOO"].tolist() == pytest.approx(loo)
    said, probability = shown.answer
    assert said == "the end"
    assert f"Answer “the end”: log-probability {math.log(probability):+.2f}" in shown.caption
    own = [w.text for place, w in enumerate(shown.words) if place not in shown.special]
    assert own == ["Is it the end? No.", "Hm."]
    assert [w.text for w in shown.words][:2] == ["<s>", "u"]
    assert shown.remark == ""
    one = lrp.explain(clf, "A dog", answer=" is", target="contrast", methods="ig:baseline=5")
    assert one.answer == (" is", None)
    assert "Answer “ is”: contrast" in one.caption


def test_each_token_of_an_answer_opens_its_own_map(clf, tmp_path):
    """Without a script: a summary takes a tap, and Enter on the keyboard."""
    shown = lrp.explain(clf, CHAT, answer="the end", units="sentence")
    inputs = clf.encode(CHAT, answer="the end")
    each = lrp.leave_one_out(clf, inputs, units="sentence", per_token=True)[0]
    assert [next(iter(one.maps)) for one in shown.of_answer] == ["the", " ", "e", "n", "d"]
    for one, expected in zip(shown.of_answer, each, strict=True):
        assert next(iter(one.maps.values())).tolist() == pytest.approx(expected.tolist())
    page = shown.save(tmp_path / "answer.html").read_text()
    assert page.count("<details><summary>") == 5 + 1  # and the table of scores
    assert "<details><summary>the</summary><p><b>the</b>" in page
    assert "<script" not in page
    assert lrp.explain(clf, "A dog", "mask-gradient").of_answer == []


def test_without_an_answer_a_chat_gets_the_models_own(clf):
    said, cut = clf.reply(CHAT, most=6)
    assert (said, cut) == (greedy(clf, CHAT, 6), True)
    shown = lrp.explain(clf, [CHAT], "mask-gradient")[0]
    assert shown.answer[0] == greedy(clf, CHAT, 64)
    told = "The answer is the model's own, its most probable token each time"
    assert shown.remark.startswith(f"{told}, under its generation_config's suppress_tokens=[")
    assert shown.remark.endswith(", cut where it grew long.")
    for prompt in (CHAT, "A dog"):
        own = lrp.explain(clf, prompt, "mask-gradient", answer="own")
        assert (own.answer[0], own.remark[: len(told)]) == (clf.reply(prompt)[0], told)


def test_a_shell_says_that_a_plain_text_goes_without_the_chat_template(clf, tmp_path, capsys):
    tiny.save(clf, tmp_path)
    capsys.readouterr()
    command = ["--model", str(tmp_path), "--methods", "mask-gradient", "--device", "cpu"]
    classes = ["--template", "{text} is", "--verbalizers", "A,B"]
    for given, said in ((["A dog"], 1), ([json.dumps(CHAT)], 0), (["A dog", *classes], 0)):
        assert main(["explain", *given, *command]) == 0
        error = capsys.readouterr().err
        assert error.count("without the model's chat template") == error.count("\n") == said
        assert error.count("""'[{"role": "user", "content": "…"}]'; --template""") == said
    assert main(["explain", json.dumps(CHAT), *command, "--answer", "the end"]) == 0
    assert "Answer “the end”: log-probability" in capsys.readouterr().out
    tiny.byte_tokenizer(None).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert main(["explain", "A dog", *command]) == 0
    assert capsys.readouterr().err == ""
