"""The committed recordings: small, without local traces, and what a new measurement gives again."""

import json
import re

import pytest

from lrputils.book.layout import find_book
from lrputils.runs import results

HOME = find_book().root / "results"
# What made them: the same program, under three names.
COMMANDS = (
    "lrputils record ",
    "python -m recipes.recordings",
    "python -m experiments.recordings",
)
RUNS = sorted(path.parent for path in HOME.glob("*/*/provenance.json"))


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
