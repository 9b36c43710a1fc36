"""Recorded runs: what is written is read back, and only if it is what the provenance describes."""

import json
import os

import numpy as np
import pandas as pd
import pytest

from experiments.recordings.provenance import provenance, write
from lrputils.runs import results
from lrputils.runs.folders import atomic_write


@pytest.fixture
def rows():
    r = np.random.default_rng(0).uniform(-1, 1, (5, 2))
    return pd.DataFrame(
        {
            "id": [str(text) for text in (3, 1, 4, 0, 5) for _ in range(2)],
            "method": ["loo", "ig"] * 5,
            "readout": "",
            "family": "",
            "layer": 0,
            "r": r.ravel().astype("float32"),
        }
    )


@pytest.fixture
def folder(tmp_path, rows):
    facts = provenance(
        command="lrputils record …", parameters={"seed": 0}, seconds=300, model={"name": "tiny"}
    )
    write(tmp_path / "results" / "sst" / "tiny", rows, facts)
    return tmp_path / "results"


def test_what_was_written_is_read_back(folder, rows):
    recording = results.load("sst", "tiny", folder)
    pd.testing.assert_frame_equal(recording.rows[[*rows]], rows)
    assert list(recording.per_text().index) == ["3", "1", "4", "0", "5"]
    assert recording.provenance["parameters"] == {"seed": 0}
    assert recording.provenance["rows"]["count"] == 10
    assert not list(folder.rglob("*.partial"))


def test_maps_are_told_apart_by_readout_and_layers():
    labels = {
        "method": ["loo", "attnlrp", "attnlrp", "cp-lrp"],
        "readout": ["", "word", "post-norm", "sum"],
        "family": ["", "", "front", ""],
        "layer": [0, 0, 10, 0],
    }
    run = results.Recording(pd.DataFrame({"id": "0", **labels, "r": np.arange(4.0)}), {})
    assert run.ablations("r", "post-norm")["front", 10].item() == 2
    assert run.per_text("r", ["cp-lrp"], "sum").loc["0", "cp-lrp"] == 3
    assert list(run.per_text()) == ["loo", "attnlrp", "cp-lrp"]
    assert list(run.summary(methods=["cp-lrp", "loo"]).value) == [3, 0]
    with pytest.raises(ValueError, match="no layer ablations at 'sum'"):
        run.ablations("r", "sum")


def test_a_missing_recording_lists_those_there_are(folder):
    with pytest.raises(FileNotFoundError, match=r"imdb/tiny; there are \['sst/tiny'\]"):
        results.load("imdb", "tiny", folder)


def test_rows_that_the_provenance_does_not_describe_are_refused(folder):
    path = folder / "sst" / "tiny" / results.PROVENANCE
    facts = json.loads(path.read_text())
    facts["rows"]["sha256"] = "0" * 64
    path.write_text(json.dumps(facts))
    with pytest.raises(ValueError, match="record the run again"):
        results.load("sst", "tiny", folder)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as partial:
        partial.write_text("first")
    with pytest.raises(TypeError), atomic_write(path) as partial:
        partial.write_text(b"not a text")
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    real, order = {name: getattr(os, name) for name in ("fsync", "replace")}, []
    for name in real:
        monkeypatch.setattr(os, name, lambda *given, n=name: order.append(n) or real[n](*given))
    with atomic_write(tmp_path / "a.txt") as partial:
        partial.write_text("first")
    assert order == ["fsync", "replace"]
