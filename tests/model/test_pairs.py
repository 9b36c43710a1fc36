"""Pairs of texts: encoded as the tokenizer does, removed from exactly, walked from file to page."""

from __future__ import annotations

import copy

import pandas as pd
import pytest
import torch
from tokenizers import processors

import lrputils as lrp
from experiments import fine_tune
from lrputils.__main__ import main
from lrputils.model.inputs import encode
from tests import untrained

PAIRS = [("A good film.", "Bad"), ("Bad", "Not a bad film, all in all!")]
TABLE = pd.DataFrame(PAIRS, columns=["premise", "hypothesis"]).assign(label=[0, 1])


@pytest.fixture(scope="module")
def clf():
    model, tokenizer = untrained.build(layers=2, hidden=16, heads=2)
    torch.nn.init.normal_(model.bert.embeddings.token_type_embeddings.weight)
    return lrp.Classifier(model.eval(), tokenizer, "pairs")


def test_pairs_are_encoded_as_the_tokenizer_does(clf):
    ours = clf.encode(PAIRS)
    firsts, seconds = zip(*PAIRS, strict=True)
    options = {"padding": True, "return_tensors": "pt", "return_special_tokens_mask": True}
    theirs = clf.tokenizer(list(firsts), list(seconds), **options)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for passed, sentence in (
        ([PAIRS[0], "Bad"], "Text 1 is one text, and text 0 is not: encode single"),
        ([("Bad", " ")], r"Text 0 has no token of its own .*\('Bad', ' '\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            clf.encode(passed)


@pytest.mark.parametrize(
    "given",
    [
        [list(pair) for pair in PAIRS],
        TABLE,
        TABLE.to_dict("records"),
        TABLE.to_dict("list"),
        TABLE.rename(columns={"premise": "text", "hypothesis": "text_pair"}),
        pd.Series(PAIRS),
    ],
)
def test_pairs_in_every_form(clf, given):
    assert torch.equal(clf.encode(given)["input_ids"], clf.encode(PAIRS)["input_ids"])
    assert lrp.load_texts(given).texts == tuple(PAIRS)


def test_the_longer_side_is_cut(clf):
    inputs = clf.encode([("film " * 30, "bad bad")], 12, truncate=True)
    assert inputs.truncated == (0,)
    assert inputs["token_type_ids"].sum(1).item() == 3
    with pytest.raises(ValueError, match=r"adds 3 special tokens\. Ask for at least 5"):
        clf.encode(PAIRS, 4, truncate=True)


@pytest.mark.parametrize("removal", ["attention-mask", "delete"])
def test_loo_of_a_pair_is_ten_lines_of_plain_torch(clf, removal):
    inputs = clf.encode(PAIRS)
    scores = lrp.leave_one_out(clf, inputs, removal=removal)
    words = clf.model.bert.embeddings.word_embeddings
    for row, tokens in enumerate(inputs.tokens):
        ids, types = (inputs[n][row, : len(tokens)] for n in ("input_ids", "token_type_ids"))
        whole = clf.model(ids[None], token_type_ids=types[None]).logits[0]
        for i in range(len(tokens)):
            x, mask, kind = words(ids)[None].clone(), torch.ones(1, len(ids)), types[None]
            if removal == "attention-mask":
                mask[0, i] = 0
            else:
                left = torch.arange(len(ids)) != i
                x, mask, kind = x[:, left], mask[:, left], kind[:, left]
            logits = clf.model(inputs_embeds=x, attention_mask=mask, token_type_ids=kind).logits
            expected = (whole - logits[0])[whole.argmax()]
            torch.testing.assert_close(scores[row, i], expected, atol=1e-5, rtol=1e-4)


def test_half_a_pair_is_said_aloud(clf):
    with pytest.warns(UserWarning, match=r"holds '\[SEP\]', which separates .* A pair is a tuple"):
        clf.encode("a film [SEP] a good film")
    joined = copy.deepcopy(clf.tokenizer)
    joined.backend_tokenizer.post_processor = processors.Sequence([])
    with pytest.warns(UserWarning, match="puts no token between the two texts of a pair"):
        encode(joined, PAIRS)
    with pytest.warns(UserWarning, match="text_column='premise,hypothesis' takes both"):
        assert lrp.load_texts(TABLE, text_column="premise").texts == ("A good film.", "Bad")
    with pytest.raises(ValueError, match="a text has one column, a pair two"):
        lrp.load_texts(TABLE, text_column="premise,hypothesis,label")
    with pytest.raises(ValueError, match="no column 'hypotheses': choose text_column"):
        lrp.load_texts(TABLE, "premise,hypotheses,label")


def test_from_file_to_training_explanation_rows_and_page(tmp_path, capsys):
    """Whether both sentences name the same thing: no side alone says it."""
    things = ["film", "book", "song", "play"]
    rows = [(f"a {x} was here", f"they saw the {y}", int(x == y)) for x in things for y in things]
    rows += [row for row in rows if row[2]] * 2
    data = tmp_path / "pairs.csv"
    table = pd.DataFrame(rows, columns=["claim", "evidence", "same"])
    pd.concat([table] * 3).to_csv(data, index=False)
    out = tmp_path / "model"
    how = {"columns": "claim,evidence,same", "labels": ["other", "same"], "epochs": 1.0}
    fine_tune.make(data=str(data), out=out, max_length=32, **how)
    chosen = ["--model", str(out), "--dataset", str(data), "--text-column", "claim,evidence"]
    chosen += ["--label-column", "same", "--limit", "4", "--quiet", "--device", "cpu"]
    assert main(["evaluate", *chosen, "--out", str(tmp_path / "rows")]) == 0
    assert main(["audit", *chosen, "--out", str(tmp_path / "audit")]) == 0
    rows = pd.read_parquet(tmp_path / "rows" / "rows")
    assert all(list(pieces).count("[SEP]") == 2 for pieces in rows.pieces)
    told = (tmp_path / "audit" / "audit.html").read_text()
    assert "<br>" in told
    assert "classified right" in told
    page = tmp_path / "pair.html"
    given = ["explain", "a film was here", "--second", "they saw the film", "--model", str(out)]
    assert main([*given, "--out", str(page)]) == 0
    assert "</span><br><span" in page.read_text()
    capsys.readouterr()
