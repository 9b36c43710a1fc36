"""Pairs of texts: encoded as the tokenizer does, removed from exactly, walked from file to page."""

import copy

import pandas as pd
import pytest
import torch
from tokenizers import processors

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.model.inputs import encode
from lrputils.propagation.composites import GRADIENT
from tests import reference, tiny

PAIRS = [("A good film.", "Bad"), ("Bad", "Not a bad film, all in all!")]
TABLE = pd.DataFrame(PAIRS, columns=["premise", "hypothesis"]).assign(label=[0, 1])


@pytest.fixture(scope="module")
def clf():
    clf = tiny.classifier(name="pairs")
    torch.nn.init.normal_(clf.model.bert.embeddings.token_type_embeddings.weight)
    return clf


def test_pairs_are_encoded_as_the_tokenizer_does(clf):
    ours = clf.encode(PAIRS)
    firsts, seconds = zip(*PAIRS, strict=True)
    options = {"padding": True, "return_tensors": "pt", "return_special_tokens_mask": True}
    theirs = clf.tokenizer(list(firsts), list(seconds), **options)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


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


def test_the_second_of_a_pair_is_told_from_the_first_under_rules(clf):
    inputs = clf.encode(PAIRS)
    plain = lrp.attribute(clf, inputs, "grad-x-input")
    with lrp.propagating(clf, GRADIENT):
        assert torch.equal(lrp.attribute(clf, inputs, "grad-x-input"), plain)


@pytest.mark.parametrize("removal", ["attention-mask", "delete"])
def test_loo_of_a_pair_is_that_of_plain_passes(clf, removal):
    inputs = clf.encode(PAIRS)
    found = lrp.leave_one_out(clf, inputs, removal=removal)
    expected = reference.leave_one_out(clf.model, inputs, removal)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)


def test_half_a_pair_is_said_aloud(clf):
    with pytest.warns(UserWarning, match=r"holds '\[SEP\]', which separates .* A pair is a tuple"):
        clf.encode("a film [SEP] a good film")
    joined = copy.deepcopy(clf.tokenizer)
    joined.backend_tokenizer.post_processor = processors.Sequence([])
    with pytest.warns(UserWarning, match="puts no token between the two texts of a pair"):
        encode(joined, PAIRS)
    with pytest.warns(UserWarning, match="text_column='premise,hypothesis' takes both"):
        assert lrp.load_texts(TABLE, text_column="premise").texts == ("A good film.", "Bad")


def test_from_a_file_to_an_explanation_rows_and_a_page(clf, tmp_path):
    model, data = tiny.save(clf, tmp_path / "model"), tmp_path / "pairs.csv"
    table = TABLE.rename(columns={"premise": "claim", "hypothesis": "evidence", "label": "same"})
    table.to_csv(data, index=False)
    chosen = ["--model", str(model), "--dataset", str(data), "--text-column", "claim,evidence"]
    chosen += ["--label-column", "same", "--quiet", "--device", "cpu"]
    assert main(["evaluate", *chosen, "--out", str(tmp_path / "rows")]) == 0
    assert main(["audit", *chosen, "--out", str(tmp_path / "audit")]) == 0
    rows = pd.read_parquet(tmp_path / "rows" / "rows")
    assert all(list(pieces).count("[SEP]") == 2 for pieces in rows.pieces)
    told = (tmp_path / "audit" / "audit.html").read_text()
    assert "<br>" in told
    assert "classified right" in told
    page = tmp_path / "pair.html"
    given = ["explain", "a film was here", "--second", "they saw the film", "--model", str(model)]
    assert main([*given, "--out", str(page)]) == 0
    assert "</span><br><span" in page.read_text()
