"""A bench keeps what is done, and goes on only with the same things."""

from __future__ import annotations

import json
import re

import pytest

from experiments.bench import groups as bench
from experiments.bench.__main__ import main
from lrputils.book.layout import find_book

RUNS = sorted((find_book().root / "results/bench").glob("*/bench.json"))
ROW = {"what": "work", "side": "ours", "ratio": 1.0, "low": 1.0, "high": 1.0}


@pytest.fixture
def groups(monkeypatch):
    """Two quick groups; how often each was measured."""
    ran = {"first": 0, "second": 0}

    def group(name):
        def measured(_):
            ran[name] += 1
            if ran[name] < 0:
                raise KeyboardInterrupt
            return [ROW, {**ROW, "side": "other", "ratio": float("nan")}]

        return measured, 6

    monkeypatch.setattr(bench, "GROUPS", {name: group(name) for name in ran})
    return ran


def test_a_killed_bench_keeps_what_is_done_and_goes_on(groups, tmp_path, capsys):
    groups["second"] = -2
    with pytest.raises(KeyboardInterrupt):
        bench.bench("1x64", out=tmp_path)
    kept, facts = bench.load(tmp_path / bench.FILE)
    assert list(kept) == ["first"]
    assert facts["processor"]["cores"] >= 1
    groups["second"] = 0
    bench.bench("1x64", out=tmp_path)
    assert groups == {"first": 1, "second": 1}
    assert "second: about 0.1 minutes on two cores" in capsys.readouterr().err
    bench.bench("1x64", out=tmp_path, only=["first"])
    assert groups == {"first": 2, "second": 1}
    assert [len(rows) for rows in bench.load(tmp_path / bench.FILE)[0].values()] == [2, 2]


def test_another_model_does_not_go_on(groups, tmp_path):
    bench.bench("1x64", out=tmp_path, only=["first"])
    with pytest.raises(ValueError, match=r"was measured with model = .* name another folder"):
        bench.bench("2x64", out=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "speed"], "no group(s) ['speed']; there are"),
        (["--model", "2x50"], "a width is a multiple of 12 or of 64"),
        (["--repeats", "0"], "the smallest possible value is 1"),
    ],
)
def test_mistakes_are_one_sentence(arguments, complaint, tmp_path):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        main([*arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_command_prints_all_rows(groups, tmp_path):
    assert main(["--model", "1x64", "--out", str(tmp_path)]).count("other") == 2


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
class TestRecorded:
    def test_what_the_chapter_reads_is_there_and_outputs_agreed(self, path):
        groups, facts = bench.load(path.parent.name)
        of_chapter = {"time", "model", "methods", "loo-sentences"}
        of_gpu = {"loo-sentences", "loo-review"}
        kind = path.parent.name.split("-")[0]
        wanted = {"answers": {"answers"}, "h200": of_gpu}.get(kind, of_chapter)
        assert wanted <= set(groups) <= set(bench.GROUPS)
        assert {"name", "cores", "vectors"} <= set(facts["processor"])
        for rows in groups.values():
            assert "side" not in rows or rows.difference.dropna().le(1e-2).all()

    def test_it_names_no_machine_and_no_folder(self, path):
        text = path.read_text()
        assert "/" not in json.dumps(json.loads(text)["provenance"])
