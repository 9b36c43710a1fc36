"""Answers of a language model in a data set: evaluated, recorded and audited, as classes are."""

import json
import time
from dataclasses import replace

import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.data.texts import stream_texts
from lrputils.runs.folders import read_json
from lrputils.study import cost
from tests import tiny

ROWS = [
    {"messages": [{"role": "user", "content": "Is it the end? No."}], "answer": "the end"},
    {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hm. A dog, is it? It is a dog."},
        ],
        "answer": " is",
    },
]


@pytest.fixture(scope="module")
def lm():
    return tiny.speaking()


@pytest.fixture
def files(lm, tmp_path):
    """The model's folder, and the rows in two forms of JSON: lists, and text in CSV."""
    tiny.save(lm, tmp_path / "lm")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    written = [{**row, "messages": json.dumps(row["messages"])} for row in ROWS]
    pd.DataFrame(written).to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("units", ["token", "sentence"])
def test_rows_are_the_maps_of_the_answers(lm, units):
    found = lrp.evaluate(
        lm, ROWS, ["attnlrp"], answers="answer", units=units, target="logit", progress=False
    )
    for number, row in enumerate(ROWS):
        inputs = lm.encode(row["messages"], answer=row["answer"])
        loo = lrp.leave_one_out(lm, inputs, units=units, output="logit")[0]
        torch.testing.assert_close(torch.tensor(found.maps["loo"][number]), loo.float())
        map_ = lrp.attribute(lm, inputs, "attnlrp", units=units, target="logit")[0]
        where = inputs.units(units).mask[0]
        if units == "token":  # the template's too, and not the answer's
            where = ~inputs["answer_mask"][0].bool()
        r = torch.corrcoef(torch.stack([map_.double(), loo.double()])[:, where])[0, 1]
        own = found.rows[(found.rows.id == str(number)) & (found.rows.method == "attnlrp")]
        assert own.r.item() == pytest.approx(float(r), abs=1e-6)
        assert not own.content.item()[inputs["answer_mask"][0].bool()].any()


def test_a_shell_audits_and_evaluates_answers_of_both_kinds_of_files(lm, files):
    how = ["--model", str(files / "lm"), "--device", "cpu", "--quiet", "--methods", "cp-lrp"]
    audit = ["--units", "sentence", "--dataset", str(files / "rows.csv"), "--answers", "answer"]
    assert main(["audit", *how[:-2], *audit, "--out", str(files / "audit")]) == 0
    page = (files / "audit" / "audit.html").read_text()
    assert "Answer “the end”" in page.replace("<bdi>", "").replace("</bdi>", "")
    for kind in ("jsonl", "csv"):
        given = ["--dataset", str(files / f"rows.{kind}"), "--out", str(files / kind)]
        assert main(["evaluate", *how, *given, "--answers", "answer"]) == 0
        rows = pd.read_parquet(files / kind / "rows")
        inputs = lm.encode(ROWS[1]["messages"], answer=ROWS[1]["answer"])
        loo = lrp.leave_one_out(lm, inputs)[0]
        kept = rows[(rows.id == "1") & (rows.method == "loo")].scores.item()
        torch.testing.assert_close(torch.tensor(kept), loo.float(), rtol=1e-4, atol=1e-4)
        assert read_json(files / kind / "run.json")["options"]["answers"] == "answer"
    assert main(["evaluate", *how, *given]) == 1  # of the next token it is another run


def test_the_models_own_answers_are_said_once_and_long_ones_are_cut_aloud(lm, files, monkeypatch):
    asked = []
    reply = lrp.Classifier.reply
    monkeypatch.setattr(
        lrp.Classifier, "reply", lambda self, *given: asked.append(given) or reply(self, *given)
    )
    texts = lrp.load_texts(ROWS, answers="own")
    with pytest.warns(UserWarning, match="2 of 2 answers are cut behind 5 tokens"):
        said = lm.answered(texts, 5)
    with pytest.warns(UserWarning, match="2 of 2"):
        again = lm.answered(texts, 5)
    assert again == said
    assert len(asked) == 2
    for row, one in zip(ROWS, said, strict=True):
        assert one.answer == lm.reply(row["messages"], 5)[0]
    with pytest.warns(UserWarning, match="1 of 2 answers are cut behind 2 tokens"):
        cut = lm.answered(lrp.load_texts(ROWS, answers="answer"), 2)
    assert [one.answer for one in cut] == ["the e"[:4], " is"]


def test_a_forecast_times_a_few_answers_and_counts_all(lm, monkeypatch):
    asked = []

    def reply(self, prompt, most=64):
        asked.append(prompt)
        time.sleep(0.1)
        return "the end", False

    monkeypatch.setattr(lrp.Classifier, "reply", reply)
    texts = stream_texts(ROWS * 20, answers="own")
    plan = cost.forecast(lm, replace(texts, each=lm.answered), [])
    assert len(asked) == 4
    assert 40 * 0.1 <= plan.seconds["answers"] < 40
    given = cost.forecast(lm, stream_texts([ROWS[0]] * 40, answers="answer"), [])
    assert "answers" not in given.seconds
    own = sum(len(lm.encode(row["messages"], answer="the end").tokens[0]) for row in ROWS)
    assert plan.tokens == 20 * own


@pytest.mark.parametrize(
    ("verb", "head"),
    [("audit", "ForSequenceClassification"), ("evaluate", "ForConditionalGeneration")],
)
def test_an_encoder_decoder_is_refused_by_name(files, capsys, verb, head):
    name, out = f"T5{head}", files / "out"
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    tiny.made("T5", head, decoder_start_token_id=0, **sizes).save_pretrained(files / "lm")
    how = ["--model", str(files / "lm"), "--device", "cpu", "--dataset", str(files / "rows.csv")]
    for answers in ("answer", "own"):
        assert main([verb, *how, "--answers", answers, "--out", str(out)]) == 1
        (said,) = capsys.readouterr().err.splitlines()[-1:]
        assert f"{name} is no language model" in said or f"is a {name}, not a" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("rows", "answers", "sentence"),
    [
        (ROWS, "said", r"no column 'said': choose answers from .* or 'own'"),
        ([{**ROWS[0], "answer": " "}], "answer", "no answer in row 0 of 'answer'"),
        ([{**ROWS[0], "answer": None}], "answer", "no answer in row 0 of 'answer'"),
        ([{"messages": []}], "own", "no text in row 0 of column 'messages'"),
    ],
)
def test_what_is_no_answer_is_refused(rows, answers, sentence):
    with pytest.raises(ValueError, match=sentence):
        lrp.load_texts(rows, answers=answers)
