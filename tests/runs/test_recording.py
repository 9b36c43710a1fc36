"""Recording texts: the rows, going on after a kill, and what a mistake is answered with."""

import json

import numpy as np
import pandas as pd
import pytest

import lrputils as lrp
from lrputils import __main__ as command_line
from lrputils.model.readout import READOUTS
from lrputils.propagation.composites import ATTN_LRP, CP_LRP
from lrputils.propagation.refactored import FORMS
from lrputils.runs import results
from lrputils.runs import texts as recording
from lrputils.runs.studies import record_study
from lrputils.runs.texts import Settings, record
from lrputils.study.conventions import composites
from lrputils.study.softmax_errors import MEASURES, layer_errors
from lrputils.study.variants import Label, layer_sets

SETTINGS = Settings(shard=2, ablation_curves=2)


@pytest.fixture(scope="module")
def texts():
    return lrp.load_texts("reviews", limit=5)


@pytest.fixture(scope="module")
def folder(classifier, texts, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "own" / "tiny"
    return record(classifier, texts, out, SETTINGS, command="lrputils record …", quiet=True)


def test_a_row_for_every_text_and_method(folder, classifier, texts):
    rows = pd.read_parquet(folder / results.ROWS)
    expected = {Label(method) for method in SETTINGS.methods}
    expected |= {Label(m, place) for m in ("attnlrp", "cp-lrp") for place in READOUTS}
    sets = layer_sets(classifier.architecture.layers)
    expected |= {Label("attnlrp", place, *ablation) for ablation in sets for place in READOUTS}
    keys = ["id", *Label._fields]
    assert {Label(*row) for row in rows[[*Label._fields]].itertuples(index=False)} == expected
    assert len(rows) == len(texts) * len(expected)
    assert list(rows.id.unique()) == list(texts.ids)
    assert not rows.duplicated(keys).any()


def test_the_rows_are_what_evaluate_says(folder, classifier, texts):
    rows = pd.read_parquet(folder / results.ROWS)
    rows = rows[(rows.family == "") & (rows.readout == "word")].set_index(["id", "method"])
    result = lrp.evaluate(classifier, texts, ["attnlrp", "ig"], chunk=1, progress=False)
    for method in ("attnlrp", "ig"):
        for column in ("r", "r_content", "r_normalised", "lerf", "morf", "delta"):
            recorded = rows.xs(method, level="method")[column].to_numpy()
            assert recorded == pytest.approx(result.per_text(column)[method], abs=2e-4)
        for position, text in enumerate(texts.ids):
            curve = result.curves[method][position].lerf
            assert rows.loc[(text, method), "lerf_curve"] == pytest.approx(curve, abs=1e-3)


def test_ablations_have_curves_where_asked_and_correlations_everywhere(folder, texts):
    rows = pd.read_parquet(folder / results.ROWS)
    ablations = rows[(rows.family == "single") & (rows.layer == 1)].set_index("readout")
    single = ablations.loc["word"]
    assert single.r.notna().all()
    assert list(single.delta.notna()) == [True] * 2 + [False] * 3
    assert single.lerf_curve.notna().equals(single.delta.notna())
    assert ablations.loc["sum"].delta.isna().all()


def test_the_provenance_names_model_texts_and_settings(folder, classifier, texts):
    facts = json.loads((folder / results.PROVENANCE).read_text())
    assert facts["model"]["identity"] == classifier.identity
    assert facts["data"] == {"name": texts.name, "identity": texts.identity, "texts": 5}
    assert facts["parameters"]["ablation_curves"] == 2
    assert 0 <= facts["accuracy"] <= 1
    assert results.load("own", "tiny", folder.parents[1]).caption().startswith("recorded")


def test_a_killed_run_goes_on_and_gives_the_same_rows(
    folder, classifier, texts, tmp_path, monkeypatch
):
    real, calls = recording._shard, []

    def dies_at_the_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(recording, "_shard", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        record(classifier, texts, tmp_path / "run", SETTINGS, quiet=True)
    record(classifier, texts, tmp_path / "run", SETTINGS, quiet=True)
    assert len(calls) == 4  # three shards, one of them twice
    again = pd.read_parquet(tmp_path / "run" / results.ROWS)
    whole = pd.read_parquet(folder / results.ROWS)
    pd.testing.assert_frame_equal(again, whole)
    assert {p.name for p in (tmp_path / "run").iterdir()} == {results.ROWS, results.PROVENANCE}


def test_an_unfinished_recording_of_something_else_is_not_continued(
    classifier, texts, tmp_path, monkeypatch
):
    real = recording._shard
    monkeypatch.setattr(
        recording, "_shard", lambda *given: real(*given) if given[2][0] == 0 else 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        record(classifier, texts, tmp_path, SETTINGS, quiet=True)
    with pytest.raises(ValueError, match="unfinished recording with chunk = 1, now it is 2"):
        record(classifier, texts, tmp_path, Settings(chunk=2, shard=2), quiet=True)


def test_what_fails_before_its_first_shard_claims_no_folder(classifier, texts, tmp_path):
    out = tmp_path / "own" / "tiny"
    with pytest.raises(ValueError, match="max_length=1 leaves no room"):
        record(classifier, texts, out, Settings(shard=2, max_length=1), quiet=True)
    assert not list(tmp_path.iterdir())
    record(classifier, texts.take([0, 1]), out, SETTINGS, quiet=True)


def test_a_second_run_into_the_folder_is_refused(classifier, texts, tmp_path, monkeypatch):
    real = recording._shard

    def with_a_rival(*given):
        with pytest.raises(ValueError, match="another process is recording into"):
            record(classifier, texts, tmp_path, SETTINGS, quiet=True)
        return real(*given)

    monkeypatch.setattr(recording, "_shard", with_a_rival)
    record(classifier, texts.take([0, 1]), tmp_path, SETTINGS, quiet=True)
    assert {p.name for p in tmp_path.iterdir()} == {results.ROWS, results.PROVENANCE}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("texts --model no/such/folder", "no/such/folder"),
        ("texts --dataset missing.csv", "missing.csv"),
        ("texts --split test", "split"),
        ("texts --methods ig,shap", "unknown method(s) ['shap']; choose from ['loo'"),
        ("texts --methods ,", "unknown method(s) ; choose from ['loo'"),
        ("texts --chunk 0", "--chunk 0: the smallest possible value is 1"),
        ("texts --ablation-curves -1", "--ablation-curves -1: the smallest possible value is 0"),
        ("texts --limit 0", "--limit 0: the smallest possible value is 1"),
        ("texts --seed -1", "--seed -1: the smallest possible value is 0"),
        ("texts --methods ig --curves rollout", "curves of ['rollout'], which are not among"),
        ("maps --removals mask,all", "unknown removal(s) ['all']; choose from ['attention-mask'"),
        ("maps --methods shap", "unknown method(s) ['shap']; choose from ['mask-gradient', 'attn"),
        (
            "maps --removals , --methods ,",
            "no removals and no methods: there is nothing to measure",
        ),
        ("yardstick --permutations 5", "permutations=5 is not an even number from 4 on"),
        ("yardstick --longest 0", "--longest 0: the smallest possible value is 1"),
        ("softmax --batch-size -2", "--batch-size -2: the smallest possible value is 1"),
        ("softmax --max-length 0", "--max-length 0: the smallest possible value is 1"),
        ("mnist --seeds 0", "--seeds 0: the smallest possible value is 1"),
        ("mnist --settings learned-unit", "'learned-unit' is no setting: write one as learned-m"),
        ("mnist --settings none-mean-loud", "scaling='loud' is not one of ('unit', "),
        ("mnist --images -3", "--images -3: the smallest possible value is 1"),
    ],
)
def test_mistakes_on_the_command_line_get_one_line(arguments, message, tmp_path, capsys):
    code = command_line.main(["record", *arguments.split(), "--out", str(tmp_path / "x")])
    error = capsys.readouterr().err
    assert code == 1
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("arguments", ["--repeats 0"])
def test_bench_refuses_numbers_that_no_run_can_have(arguments, capsys):
    assert command_line.main(["bench", *arguments.split()]) == 1
    assert f"{arguments}: the smallest possible value is 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"shard": 0}, "shard=0"),
        ({"max_length": 0}, "max_length=0"),
        ({"ablation_curves": -1}, "ablation_curves=-1"),
        ({"methods": ()}, "choose from"),
        ({"methods": ("ig", "shap")}, "shap"),
    ],
)
def test_impossible_settings_are_refused(value, message):
    with pytest.raises(ValueError, match=message):
        Settings(**value)


def test_maps_are_those_of_each_convention(classifier, texts, tmp_path):
    out = tmp_path / "maps" / "tiny"
    options = {"removals": ["attention-mask", "delete"], "shard": 2}
    record_study("maps", classifier, texts, out, quiet=True, **options)
    rows = results.load("maps", "tiny", tmp_path).rows
    assert list(rows.id.unique()) == list(texts.ids)
    keys = ["method", "rules", "readout", "removal"]
    wanted = [(*key, place, "") for key in composites(2) for place in READOUTS]
    wanted += [("loo", "", "", "attention-mask"), ("loo", "", "", "delete")]
    wanted += [("mask-gradient", "", "", "")]
    assert sorted(rows.groupby(keys).size().items()) == sorted((k, len(texts)) for k in wanted)
    inputs = classifier.encode(texts[3])
    by_key = rows[rows.id == texts.ids[3]].set_index(keys)
    for key, method, options in (
        (("loo", "", "", "delete"), "loo", {"removal": "delete"}),
        (("attnlrp", "", "sum", ""), "attnlrp", {"readout": "sum"}),
        (("half-value", "", "word", ""), ATTN_LRP.but(attention="half-value"), {}),
        (("cp-lrp", "norm=held", "word", ""), CP_LRP.but(norm="held"), {}),
        (("back-half", "", "word", ""), "attnlrp", {"bypass_layers": [1]}),
    ):
        expected = lrp.attribute(classifier, inputs, method, **options)[0].numpy()
        assert by_key.loc[key, "scores"] == pytest.approx(expected, rel=1e-4, abs=1e-5), key
        assert list(by_key.loc[key, "content"]) == inputs.content_mask[0].tolist()


def test_a_recording_of_softmax_errors_says_how_to_repeat_it(tmp_path):
    reviews = tmp_path / "our" / "texts.csv"
    reviews.parent.mkdir()
    pd.DataFrame({"text": ["a dull film", "a fine film", "not bad"]}).to_csv(reviews, index=False)
    out = tmp_path / "softmax" / "own"
    command_line.main(
        ["record", "softmax", "--dataset", str(reviews), "--limit", "2", "--out", str(out)]
    )
    recording = results.load("softmax", "own", folder=tmp_path)
    assert recording.provenance["data"]["texts"] == 2
    assert "--dataset our/texts.csv --limit 2" in recording.provenance["command"]
    assert str(tmp_path) not in (out / "provenance.json").read_text()
    expected = layer_errors(lrp.load_classifier(), ["a dull film", "a fine film"])
    assert list(recording.rows) == ["id", "layer", *MEASURES]
    np.testing.assert_allclose(recording.rows[[*MEASURES]], expected[[*MEASURES]], atol=1e-4)


def test_a_recording_of_refactored_attention_has_a_row_a_form(tmp_path):
    out = tmp_path / "refactored" / "own"
    command_line.main(["record", "refactored", "--limit", "1", "--quiet", "--out", str(out)])
    recording = results.load("refactored", "own", folder=tmp_path)
    assert list(recording.rows.form) == list(FORMS)
    assert set(recording.rows.method) == {"attnlrp"}
    assert recording.rows.logit.max() < 1e-4
