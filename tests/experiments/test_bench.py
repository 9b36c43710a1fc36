"""A ratio is of equal work: every other side gives the same scores."""

import json

import pytest
import torch

from experiments import bench
from experiments.command import run_alone
from lrputils.book.layout import find_book

RUNS = sorted(path.parent.name for path in (find_book().root / "results/bench").glob("*/*.json"))


def ones(size: float = 1.0):
    return lambda: torch.full((3,), size)


@pytest.fixture(scope="module")
def small():
    return bench.untrained(2, 64)


def test_a_ratio_comes_with_its_extremes_and_the_outputs_difference():
    ours, other = bench.contest("same", {"ours": ones(), "a": ones(1.0005)}, repeats=2)
    assert ours["ratio"] == ours["low"] == ours["high"] == 1
    assert other["low"] <= other["ratio"] <= other["high"]
    assert (other["side"], other["difference"]) == ("a", pytest.approx(0.0005, rel=0.01))


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_faster_but_wrong_is_no_result(wrong):
    with pytest.raises(ArithmeticError, match="work: other differs"):
        bench.contest("work", {"ours": ones(), "other": ones(wrong)}, repeats=1)


@pytest.fixture
def short(small, monkeypatch):
    """Two sentences, which take the place of more."""
    two = bench.sentences(small, 2)
    monkeypatch.setattr(bench, "sentences", lambda *_: two)
    return two


def test_the_other_sides_do_the_same_work(small, short):
    assert {bench.OURS} < {row["side"] for row in bench.loo(small, short, 1)}


def test_time_has_all_its_parts_and_one_thing_varies_at_a_time(small, short, monkeypatch):
    assert {r["part"] for r in bench.time_goes(small, a=short)} == {*bench.KINDS, "Python"}
    assert len({r["method"] for r in bench.methods(small, a=short)}) == 5
    monkeypatch.setattr(bench, "VARIED", {"tokens": (4,), "layers": (1,), "width": (128,)})
    rows = bench.model(small, middle=4)
    assert [(row["varied"], row["value"]) for row in rows] == [
        ("tokens", 4),
        ("layers", 1),
        ("width", 128),
    ]
    assert all(row["seconds"] > 0 < row["rate"] for row in rows)


def test_a_bench_is_kept_and_never_written_over(short, tmp_path):
    arguments = [
        "--model",
        "1x64",
        "--repeats",
        "1",
        "--only",
        "loo-sentences",
        "--out",
        str(tmp_path),
    ]
    assert "plain loop" in run_alone(bench.bench, arguments, prog="bench")
    assert [*json.loads((tmp_path / bench.FILE).read_text())["groups"]] == ["loo-sentences"]
    with pytest.raises(ValueError, match="name another folder"):
        run_alone(bench.bench, arguments, prog="bench")


@pytest.mark.parametrize("run", RUNS)
def test_what_is_recorded_agreed_and_names_no_folder(run):
    groups, facts = bench.load(run)
    assert {"name", "cores", "vectors"} <= {*facts["processor"]}
    assert "/" not in json.dumps(facts)
    for rows in groups.values():
        assert "side" not in rows or rows.difference.dropna().le(1e-2).all()
