"""Recording what the book quotes: rows, going on after a kill, the command line, mistakes."""

import re

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from experiments import conventions
from experiments.command import run_alone
from experiments.recordings import __main__ as recordings
from experiments.recordings import evaluations as kind
from experiments.recordings import layers
from lrputils.data.texts import load_texts, stream_texts
from lrputils.model.readout import READOUTS
from lrputils.runs import results
from lrputils.study.variants import Label, layer_sets


@pytest.fixture(scope="module")
def texts():
    return stream_texts("reviews", limit=5)


def record(classifier, texts, out, chunk=1):
    def measure(loaded, some):
        return kind.texts(loaded, some, chunk=chunk)

    options = {"chunk": chunk, "part_size": 2}
    how = {"options": options, "command": "python …", "quiet": True}
    return recordings.record_texts(measure, classifier, texts, out, **how)


@pytest.fixture(scope="module")
def folder(classifier, texts, tmp_path_factory):
    return record(classifier, texts, tmp_path_factory.mktemp("results") / "own" / "tiny")


def test_a_row_for_every_text_and_method(folder, classifier):
    rows = pd.read_parquet(folder / results.ROWS)
    expected = {Label(name) for name in lrp.METHODS if name not in kind._BOUGHT}
    expected |= {Label(m, place) for m in ("attnlrp", "cp-lrp") for place in READOUTS}
    sets = layer_sets(classifier.architecture.layers)
    expected |= {Label("attnlrp", place, *ablation) for ablation in sets for place in READOUTS}
    assert {Label(*row) for row in rows[[*Label._fields]].itertuples(index=False)} == expected
    assert len(rows) == 5 * len(expected)
    assert list(rows.id.unique()) == list(lrp.load_texts("reviews", limit=5).ids)
    assert not rows.duplicated(["id", *Label._fields]).any()
    word = rows[rows.readout == "word"]
    assert word.delta.notna().all()
    assert word.lerf_curve.notna().all()


def test_a_killed_run_goes_on_and_gives_the_same_rows(
    folder, classifier, texts, tmp_path, monkeypatch
):
    real, calls = kind.texts, []

    def dies_at_the_second(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **options)

    monkeypatch.setattr(kind, "texts", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        record(classifier, texts, tmp_path / "run")
    with pytest.raises(ValueError, match=r"with other chunk \(1, now 2\): name another folder"):
        record(classifier, texts, tmp_path / "run", chunk=2)
    record(classifier, texts, tmp_path / "run")
    assert len(calls) == 4  # three parts, one of them twice
    again = pd.read_parquet(tmp_path / "run" / results.ROWS)
    pd.testing.assert_frame_equal(again, pd.read_parquet(folder / results.ROWS))
    assert {p.name for p in (tmp_path / "run").iterdir()} == {results.ROWS, results.PROVENANCE}
    with pytest.raises(FileExistsError, match="holds a recording: remove it, or name another"):
        record(classifier, texts, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("texts --model no/such/folder", "no/such/folder"),
        ("texts --dataset missing.csv", "missing.csv"),
        ("texts --split test", "split"),
        ("texts --limit 0", "limit=0: the smallest possible value is 1"),
        ("texts -o methods=[ig] -o curves=[rollout]", "curves of ['rollout'], which are not among"),
        ("texts -o method=ig", "texts has the options ['methods', 'curves'"),
        ("maps -o removals=[mask,all]", "removals='all' is not one of ['attention-mask"),
        ("maps -o methods=[shap]", "unknown method 'shap' (did you mean 'shapley'?); there are"),
        ("remedy -o methods=[mask-gradient:thirds]", "'thirds' is no option of 'mask-gradient'"),
        ("yardstick -o permutations=5", "permutations=5 is not an even number from 4 on"),
        ("yardstick --longest 0", "longest=0: the smallest possible value is 1"),
        ("uniform --longest 1", "--longest 1: each of the 3 texts has more words"),
    ],
)
def test_mistakes_on_the_command_line_get_one_line(arguments, message, tmp_path):
    asked = [*arguments.split(), "--seed", "0", "--quiet", "--out", str(tmp_path / "x")]
    limit = [] if "--limit" in asked else ["--limit", "3"]
    with pytest.raises((ValueError, OSError), match=re.escape(message)) as caught:
        run_alone(recordings.record, [*asked, *limit], prog="recordings")
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_maps_are_those_of_each_convention(classifier):
    texts = lrp.load_texts("reviews", limit=5)
    rows = conventions.maps(classifier, texts, removals=["attention-mask", "delete"])
    keys = ["method", "options", "readout", "removal"]
    wanted = [(*key, place, "") for key in conventions._composites(2) for place in READOUTS]
    wanted += [("loo", "", "", "attention-mask"), ("loo", "", "", "delete")]
    wanted += [("mask-gradient", "", "", "")]
    assert sorted(rows.groupby(keys).size().items()) == sorted((k, len(texts)) for k in wanted)
    inputs = classifier.encode(texts[3])
    by_key = rows[rows.id == texts.ids[3]].set_index(keys)
    for key, method, options in (
        (("loo", "", "", "delete"), "loo", {"removal": "delete"}),
        (("attnlrp", "", "sum", ""), "attnlrp", {"readout": "sum"}),
        (("cp-lrp", "", "post-norm", ""), "cp-lrp", {"readout": "post-norm"}),
        (("half-value", "", "word", ""), lrp.ATTN_LRP.but(attention="half-value"), {}),
        (("cp-lrp", "norm=held", "word", ""), lrp.CP_LRP.but(norm="held"), {}),
        (("back-half", "", "word", ""), "attnlrp", {"bypass_layers": [1]}),
    ):
        expected = lrp.attribute(classifier, inputs, method, **options)[0].numpy()
        assert by_key.loc[key, "scores"] == pytest.approx(expected, rel=1e-4, abs=1e-5), key
        assert list(by_key.loc[key, "content"]) == inputs.content_mask[0].tolist()


TEXTS = load_texts(["a film that is never dull", "a slow and empty evening"])


def test_pairs_hidden_everywhere_are_leave_two_out(clf):
    rows = layers.layer_pairs(clf, TEXTS)
    inputs = clf.encode([TEXTS[0]])
    pairs = lrp.leave_two_out(clf, inputs).interactions[0].numpy()
    first = rows[(rows.id == TEXTS.ids[0]) & (rows.layer == 1)]
    assert np.allclose(first.interaction, pairs[first.i, first.j], atol=1e-4)
