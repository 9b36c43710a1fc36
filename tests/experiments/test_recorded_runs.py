"""The committed recordings: small, without local traces, and what a new measurement gives again."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import lrputils as lrp
from lrputils.book.layout import find_book
from lrputils.runs import results
from lrputils.study.variants import LayerSweep, Variant

HOME = find_book().root / "results"
# What made them: the same program, under three names.
COMMANDS = (
    "lrputils record ",
    "python -m recipes.recordings",
    "python -m experiments.recordings",
)
RUNS = sorted(path.parent for path in HOME.glob("*/*/provenance.json"))
TEXTS = {"sst": "sst2/validation.parquet", "imdb": "imdb/test.parquet"}
# Recorded values are kept to four decimals. Correlations of nearly constant maps, and perturbation
# orders of nearly equal scores, move with the last bits of float32 on another processor.
TOLERANCE = {"r": 2e-3, "r_content": 2e-3, "r_normalised": 2e-3, "logit": 1e-3, "morf": 0.03}


def test_there_are_recordings_and_they_are_small():
    assert {path.parent.name for path in RUNS} >= {"sst", "imdb", "mnist"}
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) <= 21e6


@pytest.mark.parametrize("run", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
class TestRun:
    def test_its_rows_are_those_of_its_provenance(self, run):
        recording = results.load(run.parent.name, run.name, HOME)
        assert len(recording.rows) == recording.provenance["rows"]["count"]

    def test_it_says_what_was_run_on_what_with_which_code(self, run):
        facts = json.loads((run / results.PROVENANCE).read_text())
        assert facts["command"].startswith(COMMANDS)
        assert re.fullmatch(r"sha256 [0-9a-f]{64}|commit [0-9a-f]{40}", facts["data"]["identity"])
        assert re.match(r"[0-9a-f]{40}", facts["revision"])
        assert facts["seconds"] > 0
        assert {"python", "torch", "lrputils"} <= set(facts["versions"])

    def test_it_shows_no_local_path(self, run):
        text = (run / results.PROVENANCE).read_text()
        assert not re.search(r"(?<!\w)/(?:home|root|tmp|work|Users|mnt)/", text)


@pytest.mark.parametrize("experiment", list(TEXTS))
def test_text_rows_are_measured_again(experiment, data_dir, models_dir):
    recording = results.load(
        experiment, f"minilm-{'sst2' if experiment == 'sst' else 'imdb'}", HOME
    )
    facts = recording.provenance
    clf = lrp.load_classifier(models_dir / facts["model"]["name"], device="cpu")
    assert clf.identity == facts["model"]["identity"]
    asked = {name: facts["parameters"][name] for name in ("split", "limit", "seed")}
    texts = lrp.load_texts(data_dir / TEXTS[experiment], **asked)
    assert texts.identity == facts["data"]["identity"]
    assert set(recording.rows.id) == set(texts.ids)
    lengths = recording.rows.drop_duplicates("id").set_index("id").tokens
    few = lengths.sort_values(kind="stable").index[1:4:2]  # short ones: they cost little
    chosen = texts.take([texts.ids.index(text) for text in few])
    again = lrp.evaluate(
        clf,
        chosen,
        [
            *("attnlrp", "cp-lrp", "mask-gradient", "rollout"),
            Variant("attnlrp", "attnlrp", {"readout": "sum"}),
            LayerSweep("word", families=["single"]),
        ],
        max_length=facts["parameters"]["max_length"],
        truncate=True,
        progress=False,
    )
    methods = list(again.per_text())
    away = ["attnlrp"]
    for column, tolerance in TOLERANCE.items():
        if column != "morf":
            for ours, kept in (
                (again.per_text(column, methods), recording.per_text(column, methods)),
                (again.per_text(column, away, "sum"), recording.per_text(column, away, "sum")),
                (again.ablations(column), recording.ablations(column)[["single"]]),
            ):
                assert np.allclose(ours, kept.loc[list(few)], atol=tolerance, equal_nan=True), (
                    column
                )
    curves = lrp.evaluate(
        clf,
        chosen,
        ["cp-lrp"],
        chunk=facts["parameters"]["chunk"],
        max_length=facts["parameters"]["max_length"],
        truncate=True,
        progress=False,
    )
    kept = recording.per_text("morf", ["cp-lrp"]).loc[list(few)].to_numpy()
    assert np.allclose(curves.per_text("morf", ["cp-lrp"]), kept, atol=TOLERANCE["morf"])
