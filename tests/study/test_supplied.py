"""Maps of other tools: laid on the model's tokens, and judged as the package's own are."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils.__main__ import main
from lrputils.runs import datasets
from lrputils.study.supplied import supplied
from tests import tiny

TEXTS = ["The cooking isn't dull, honestly", "a film that is never dull"]
WORDS = [["The", "cooking", "isn't", "dull", ",", "honestly"], TEXTS[1].split()]


@pytest.fixture(scope="module")
def inputs(clf):
    return clf.encode(TEXTS)


@pytest.fixture(scope="module")
def own(clf, inputs):
    """The package's own maps, (batch, tokens)."""
    return lrp.attribute(clf, inputs, "grad-x-input")


def maps(inputs, own):
    """The own maps as lists, one a text."""
    return [row[:n].tolist() for row, n in zip(own, inputs.lengths.tolist(), strict=True)]


def laid(clf, inputs, scores, units="token", texts=TEXTS):
    texts = lrp.load_texts(texts)
    (maps,) = supplied(scores, texts)
    return maps.lay(clf, inputs, texts, units=units)


def spans(text, words):
    """The characters of words, one after the other."""
    found, end = [], 0
    for word in words:
        begin = text.index(word, end)
        end = begin + len(word)
        found.append((begin, end))
    return found


@pytest.fixture(scope="module")
def forms(inputs, own):
    """The own maps as tools write them: form → columns of a table."""
    whole, strings, known = maps(inputs, own), [*map(list, inputs.tokens)], ["0", "1"]
    lengths = inputs.lengths.tolist()
    ids = [row[:n] for row, n in zip(inputs.input_ids.tolist(), lengths, strict=True)]
    kept = [row[words].tolist() for row, words in zip(own, inputs.content_mask, strict=True)]
    pieces = [[token.removeprefix("##") for token in row[1:-1]] for row in strings]
    marked = [["<s>", *map(str.upper, row), ""] for row in pieces]
    places = [spans(text.lower(), row) for text, row in zip(TEXTS, pieces, strict=True)]
    begins, ends = ([[span[side] for span in row] for row in places] for side in (0, 1))
    with_ends = [[9.0, *row, 9.0] for row in kept]
    return {
        "strings": {"id": known, "scores": whole, "tokens": strings},
        "numbers": {"id": known, "scores": whole, "tokens": ids},
        "text": {"text": TEXTS, "scores": whole},
        "whole": {"id": known, "scores": whole},
        "own tokens": {"id": known, "scores": kept},
        "pieces as spelled": {"id": known, "scores": with_ends, "tokens": marked},
        "characters": {"id": known, "scores": kept, "begin": begins, "end": ends},
    }


class TestForms:
    """However a tool writes them, the same maps are laid on the tokens."""

    @pytest.mark.parametrize(
        "form",
        ["strings", "numbers", "text", "whole", "own tokens", "pieces as spelled", "characters"],
    )
    def test_a_table(self, clf, inputs, own, forms, form):
        found = laid(clf, inputs, {"tool": pd.DataFrame(forms[form])})
        words = inputs.content_mask
        torch.testing.assert_close(found[words], own[words])
        whole = form in ("strings", "numbers", "text", "whole")
        assert bool(found[~words].any()) == whole  # special tokens may be missing

    def test_each_kind_of_file(self, clf, inputs, own, forms, tmp_path):
        table = pd.DataFrame(forms["strings"])
        table.to_parquet(tmp_path / "lists.parquet")
        table.to_json(tmp_path / "lists.jsonl", orient="records", lines=True)
        table.to_csv(tmp_path / "lists.csv", index=False)
        for path in sorted(tmp_path.iterdir()):
            if path.name == "lists.csv":  # strings in a list that JSON does not read
                continue
            torch.testing.assert_close(laid(clf, inputs, path), own, msg=path.name)
        plain = table.drop(columns="tokens").assign(scores=table.scores.map(str))
        plain.to_csv(tmp_path / "lists.csv", index=False)
        torch.testing.assert_close(laid(clf, inputs, tmp_path / "lists.csv"), own)

    def test_sequences_in_the_texts_order(self, clf, inputs, own):
        rows = maps(inputs, own)
        graph = [torch.tensor(row, requires_grad=True) for row in rows]  # as captum's may be
        for given in (rows, [*map(np.array, rows)], [*map(torch.tensor, rows)], graph):
            torch.testing.assert_close(laid(clf, inputs, {"tool": given}), own)
        named = [(list(tokens), row) for tokens, row in zip(inputs.tokens, rows, strict=True)]
        torch.testing.assert_close(laid(clf, inputs, {"tool": named}), own)

    def test_words_and_pieces_of_words(self, clf, inputs, own):
        words = {"tool": [(row, np.arange(1.0, len(row) + 1)) for row in WORDS]}
        found, where = laid(clf, inputs, words, "word"), inputs.units("word").mask
        assert found[where].tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]
        summed = laid(clf, inputs, {"tool": maps(inputs, own)}, "word")
        torch.testing.assert_close(summed, inputs.units("word").sum(own))
        torch.testing.assert_close(
            laid(clf, inputs, {"tool": maps(inputs, own)}, "sentence"),
            inputs.units("sentence").sum(own),
        )

    def test_several_tools_in_a_file_and_their_prices(self, tmp_path):
        rows = {"id": ["0", "0"], "method": ["ig", "captum IG"], "scores": [[1.0], [2.0]]}
        path = tmp_path / "maps.parquet"
        pd.DataFrame(rows | {"method": ["a b", "c"], "passes": [3, 60]}).to_parquet(path)
        assert [(each.name, each.price) for each in supplied(path)] == [("a b", 3), ("c", 60)]
        pd.DataFrame(rows).to_parquet(path)
        with pytest.raises(ValueError, match="'ig' is the name one of this package's methods"):
            supplied(str(path))


REFUSED = {
    "no map of a text": ({"id": ["0"]}, "text '1' \\('a film.*has none.*column 'id'"),
    "another number": ({"scores": [[1.0] * 4] * 2}, "text '0'.*4 scores are none for each of 11"),
    "other words": ({"tokens": [["A"], ["a"]], "scores": [[1.0]] * 2}, "token 0, 'A', is not in"),
    "fewer words": ({"tokens": [["The"], ["a"]], "scores": [[1.0]] * 2}, "nothing scores 'cook"),
    "not finite": ({"scores": [[float("nan")] * 11] * 2}, "text '0'.*score 0 is not finite"),
    "other numbers": ({"tokens": [[1], [2]], "scores": [[1.0]] * 2}, "token 0, 1, is not the mod"),
    "behind the end": (
        {"begin": [[0, 90], [0]], "end": [[32, 93], [25]], "scores": [[1.0, 2.0], [1.0]]},
        "one score: compare words, units='word'",
    ),
    "a text twice": ({"id": ["1", "1"]}, "two of the text '1'"),
    "unequal lists": ({"tokens": [["a"], ["b"]]}, "text '0' has 11 scores, 1 tokens"),
    "no scores": ({"scores": [[], []]}, "text '0' has 0 scores"),
    "no list": ({"scores": ["high", "low"]}, "text '0' has 0 scores"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_text_and_token(clf, inputs, own, case):
    columns, said = REFUSED[case]
    table = pd.DataFrame({"id": ["0", "1"], "scores": maps(inputs, own)})
    table = table.iloc[:1] if case == "no map of a text" else table.assign(**columns)
    with pytest.raises(ValueError, match=f"the maps 'tool'.*{said}"):
        lrp.evaluate(clf, TEXTS, [], scores={"tool": table}, progress=False)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        (
            {"tool": pd.DataFrame({"score": [1]})},
            "columns 'score': `id` or `text`, and `scores` are",
        ),
        ({"tool": [[1.0]]}, "1 maps of 2 texts"),
        ({"LOO": [[1.0]] * 2}, "'LOO' is the name one of this package's methods"),
        ({"Mask gradient": [[1.0]] * 2}, "'Mask gradient' is the name one of this package's"),
        ("nowhere.csv", "scores='nowhere.csv': there is no such file"),
    ],
)
def test_what_is_no_table_of_maps_is_refused(clf, scores, said):
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(said)):
        lrp.evaluate(clf, TEXTS, [], scores=scores, progress=False)


def test_a_map_of_another_class_is_refused(clf, inputs, own):
    predicted = clf.model(**inputs.model_kwargs()).logits.argmax(1).tolist()
    table = pd.DataFrame({"id": ["0", "1"], "scores": maps(inputs, own)})
    lrp.evaluate(clf, TEXTS, [], scores={"t": table.assign(target=predicted)}, progress=False)
    other = table.assign(target=[clf.labels[1 - each] for each in predicted])
    with pytest.raises(ValueError, match=r"of class '(posi|nega)tive', and another class"):
        lrp.evaluate(clf, TEXTS, [], scores={"t": other}, progress=False)


def test_rows_of_a_tool_are_those_of_the_same_method(clf, inputs, own):
    found = lrp.evaluate(
        clf,
        TEXTS,
        ["grad-x-input"],
        scores={"My tool": maps(inputs, own)},
        chunk=1,
        progress=False,
    )
    both = [found.rows[found.rows.method == name] for name in ("My tool", "grad-x-input")]
    kept = [rows.drop(columns=["method", "passes"]).reset_index(drop=True) for rows in both]
    theirs, ours = kept
    pd.testing.assert_frame_equal(theirs, ours, rtol=1e-5)


class TestRuns:
    @pytest.fixture
    def table(self, clf):
        texts = lrp.load_texts(limit=3)
        inputs = clf.encode(texts)
        scores = maps(inputs, lrp.attribute(clf, inputs, "grad-x-input"))
        return pd.DataFrame({"id": texts.ids, "scores": scores})

    def test_a_file_s_maps_join_a_run_and_others_of_that_name_are_refused(
        self, table, tmp_path, capsys
    ):
        path, out = tmp_path / "captum IG.parquet", tmp_path / "out"
        command = ["evaluate", "--limit", "3", "--methods", "grad-x-input", "--out", str(out)]
        assert main(command) == 0
        table.to_parquet(path)
        command += ["--scores", str(path), "--quiet"]
        assert main(command) == 0
        rows = datasets.read(out).rows.set_index("method")
        assert [*dict.fromkeys(rows.index)] == ["loo", "grad-x-input", "captum IG"]
        theirs, ours = (rows.loc[name] for name in ("captum IG", "grad-x-input"))
        np.testing.assert_allclose(theirs.r_content, ours.r_content, atol=1e-5)
        assert not theirs.options.any()
        table.assign(scores=table.scores.map(lambda row: row[::-1])).to_parquet(path)
        assert main(command) == 1
        assert "other maps called 'captum IG'" in capsys.readouterr().err

    def test_a_map_that_does_not_fit_stops_a_run_before_it_begins(self, table, tmp_path, capsys):
        table.iloc[:2].to_parquet(tmp_path / "few.parquet")
        how = ["--scores", str(tmp_path / "few.parquet"), "--limit", "3"]
        assert main(["evaluate", *how, "--out", str(tmp_path / "out")]) == 1
        assert "the maps 'few': text 's003'" in capsys.readouterr().err
        assert not (tmp_path / "out" / "run.json").exists()

    def test_two_files_of_one_name_are_refused(self, table, tmp_path):
        paths = [tmp_path / folder / "maps.parquet" for folder in ("a", "b")]
        for path in paths:
            path.parent.mkdir()
            table.to_parquet(path)
        with pytest.raises(ValueError, match="'maps' is the name of several maps"):
            supplied(paths)

    def test_the_audit_of_a_model_without_rules_judges_a_tool_s_maps(self):
        clf = tiny.without_rules()
        maps = [np.arange(float(n)) for n in clf.encode(TEXTS).lengths.tolist()]
        said = str(lrp.audit(clf, TEXTS, scores={"mine": maps}))
        assert "mine may track LOO or not: too few texts to say" in said
        assert "Integrated Gradients, 8 steps − mine is" in said
