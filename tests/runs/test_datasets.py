"""Evaluating a data set: the rows, whoever measured them and however often they were killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils import __main__ as command_line
from lrputils.data.texts import stream_texts
from lrputils.model.classifier import Classifier
from lrputils.runs import datasets, results, shelf
from lrputils.runs.datasets import evaluate_dataset
from lrputils.runs.folders import locked, work_folder
from lrputils.runs.settings import Settings
from lrputils.study.cost import timed
from lrputils.study.variants import Label, LayerSweep, at_every_readout
from tests import untrained

SETTINGS = Settings(methods=("attnlrp",), shard=4, batch_size=2)
TEXTS = stream_texts(limit=10)
MANY = ("attnlrp", "cp-lrp", "rollout", "grad-x-input")  # whose curves cost more than an audit
evaluate = partial(evaluate_dataset, settings=SETTINGS, quiet=True)


def rows_of(folder):
    return pd.read_parquet(folder / results.ROWS)


@pytest.fixture(scope="module")
def whole(placeholder, tmp_path_factory):
    """The folder of an undisturbed run."""
    return evaluate(placeholder, TEXTS, tmp_path_factory.mktemp("whole"))


def test_low_precision_is_told_and_bounded(placeholder, whole, tmp_path):
    low = Settings(methods=("attnlrp",), shard=4, batch_size=2, precision="bf16", tolerance=0.01)
    out = evaluate(placeholder, TEXTS, tmp_path, settings=low)
    rows, exact = (rows_of(folder).query("method == 'loo'") for folder in (out, whole))
    told = results.facts(out)["parameters"]
    assert (told["precision"], told["tolerance"]) == ("bf16", 0.01)
    assert rows.bound.between(0, 0.01).all()
    for ours, theirs in zip(rows.scores, exact.scores, strict=True):
        assert 1 - np.corrcoef(ours, theirs)[0, 1] < 0.01


def before_each_shard(patch, act):
    """Call `act` with the shelf and the number of each shard before it is measured."""
    real = datasets._given

    def given(shelf, number, *more):
        act(shelf, number)
        return real(shelf, number, *more)

    patch.setattr(datasets, "_given", given)


@contextmanager
def stopped_after_one_shard(monkeypatch):
    with monkeypatch.context() as patch:
        before_each_shard(patch, lambda _, number: number and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            yield


def damage(path, how):
    """Take a file away ("gone"), or its end ("cut"), or change a byte of it ("forged")."""
    content = bytearray(path.read_bytes())
    path.unlink()
    if how == "forged":
        content[300] ^= 1
    if how != "gone":
        path.write_bytes(content[:-9] if how == "cut" else content)


@pytest.fixture
def unfinished(placeholder, tmp_path, monkeypatch):
    """A folder with the first of three shards."""
    with stopped_after_one_shard(monkeypatch):
        evaluate(placeholder, TEXTS, tmp_path)
    return tmp_path


class TestRows:
    def test_they_are_what_evaluate_says_with_the_maps(self, whole, placeholder):
        texts, rows = lrp.load_texts(limit=10), rows_of(whole)
        found = lrp.evaluate(placeholder, texts, ["attnlrp"], progress=False)
        assert list(rows.id) == [text for text in texts.ids for _ in range(2)]
        assert list(rows.method) == ["loo", "attnlrp"] * 10
        pd.testing.assert_frame_equal(
            rows[["target", "label", "tokens"]], found.rows[["target", "label", "tokens"]]
        )
        for column in ("r", "r_content", "r_normalised", "logit"):
            np.testing.assert_allclose(rows[column], found.rows[column], atol=1e-3)
        for n, text in enumerate(texts):
            loo, lrp_map = rows.iloc[2 * n], rows.iloc[2 * n + 1]
            assert loo.scores == pytest.approx(found.maps["loo"][n], abs=1e-5)
            assert lrp_map.scores == pytest.approx(found.maps["attnlrp"][n], abs=1e-4)
            assert tuple(lrp_map.pieces) == placeholder.encode(text).tokens[0]
            ranks = [pd.Series(each).rank() for each in (loo.scores, lrp_map.scores)]
            assert lrp_map.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-3)

    def test_readouts_layers_and_curves_are_those_of_evaluate(self, placeholder, tmp_path):
        """And what was asked for of some methods is measured of those that are added."""
        texts, places = lrp.load_texts(limit=4), ("word", "sum")
        wanted = {"readouts": places, "layers": True, "curves": 2, "shard": 2}
        for methods in (("ig", "cp-lrp"), ("attnlrp",)):
            settings = Settings(methods, **wanted)
            evaluate(placeholder, stream_texts(limit=4), tmp_path, settings=settings)
        asked = [*at_every_readout("attnlrp", "cp-lrp"), LayerSweep(places), "ig"]
        asked = [a for a in asked if getattr(a, "options", {}).get("readout") != "post-norm"]
        found = lrp.evaluate(placeholder, texts, asked, chunk=2, progress=False).rows
        keys = ["id", *Label._fields]
        rows, found = (part.set_index(keys).sort_index() for part in (rows_of(tmp_path), found))
        pd.testing.assert_index_equal(rows.index, found.index)
        assert rows.index.is_unique
        assert set(rows.xs("front", level="family").index.unique("layer")) == {1, 2, 3, 4}
        for column in ("r", "r_normalised", "morf", "lerf", "delta"):
            np.testing.assert_allclose(rows[column], found[column], atol=2e-3)
        for column in ("morf_curve", "lerf_curve"):
            for ours, theirs in zip(rows[column], found[column], strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-3)

    def test_the_provenance_says_what_was_run(self, whole, placeholder):
        facts = results.facts(whole)
        assert facts["model"]["identity"] == placeholder.identity
        assert facts["data"]["texts"] == 10
        assert facts["rows"]["count"] == 20
        rows = rows_of(whole).drop_duplicates("id")
        assert facts["accuracy"] == (rows.target == rows.label).mean()
        assert {path.name for path in whole.iterdir()} == {results.ROWS, results.PROVENANCE}

    def test_they_are_written_in_groups_of_bounded_size(self, placeholder, tmp_path, monkeypatch):
        monkeypatch.setattr(results, "_GROUP", 1)
        again = evaluate(placeholder, TEXTS, tmp_path)
        monkeypatch.undo()
        assert results.pq.read_metadata(again / results.ROWS).num_row_groups == 3

    def test_memory_does_not_grow_with_their_number(self, placeholder, tmp_path, monkeypatch):
        monkeypatch.setattr(results, "_GROUP", 10**5)
        asked = Settings(()).asked(placeholder)
        one = datasets.measure(placeholder, lrp.load_texts(["dull"]), asked)
        maps = np.zeros(300, np.float32)

        def measured(loaded, some, *more):
            return pd.concat([one] * len(some)).assign(id=some.ids, scores=[maps] * len(some))

        monkeypatch.setattr(datasets, "measure", measured)
        peaks = []
        for count in (1_100, 3_300):
            path = tmp_path / f"{count}.txt"
            path.write_text("a film\n" * count)
            tracemalloc.start()
            before = results.pa.total_allocated_bytes()
            seen = self.watch_arrow(monkeypatch)
            out = evaluate(
                placeholder,
                stream_texts(path),
                tmp_path / "out" / path.stem,
                settings=Settings(methods=(), shard=100),
            )
            peaks.append(tracemalloc.get_traced_memory()[1] + max(seen) - before)
            tracemalloc.stop()
            assert rows_of(out).id.tolist() == [str(i) for i in range(count)]
        assert peaks[1] - peaks[0] < 0.2 * 2_200 * maps.nbytes

    @staticmethod
    def watch_arrow(monkeypatch):
        """Note how much memory Arrow holds, each time a shard is put behind the others."""
        real, seen = results.pq.read_table, []

        def noted(*arguments, **options):
            seen.append(results.pa.total_allocated_bytes())
            return real(*arguments, **options)

        monkeypatch.setattr(results.pq, "read_table", noted)
        return seen

    def test_shards_of_long_texts_have_fewer(self):
        assert list(shelf._cuts([9, 16, 25, 81, 1, 1], 30)) == [(0, 2), (2, 1), (3, 1), (4, 2)]
        assert list(shelf._cuts([4, 4], 30)) == [(0, 2)]

    def test_shards_of_costly_methods_have_fewer(self, placeholder, tmp_path, monkeypatch):
        monkeypatch.setitem(shelf._WORK, "cpu", 5e9)
        sizes = {}
        for name, method, curves in (
            ("cheap", "attnlrp", None),
            ("costly", "shapley", None),
            ("curves", "attnlrp", 1),
        ):
            settings = Settings(methods=(method,), shard=8, curves=curves)
            shelf.store(placeholder, TEXTS, tmp_path / name, settings, quiet=True)
            sizes[name] = list(shelf.Shelf(tmp_path / name).parts.texts)
        assert {*map(sum, sizes.values())} == {10}
        assert len(sizes["costly"]) >= 2 * len(sizes["cheap"])
        assert settings.work(20) == 20 * 4 * 20 < replace(settings, methods=MANY).work(20)

    def test_a_finished_run_is_left_alone(self, whole, placeholder, monkeypatch, capsys):
        monkeypatch.setattr(datasets, "_measure", None)
        before = (whole / results.PROVENANCE).stat().st_mtime_ns
        assert evaluate(placeholder, TEXTS, whole) == whole
        assert "is finished: nothing to do" in capsys.readouterr().err
        assert (whole / results.PROVENANCE).stat().st_mtime_ns == before


def forked(work, environment=None):
    """Run `work` in a process of its own; return its number."""
    if child := os.fork():
        return child
    try:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork: more would wait forever
        os.environ.update(environment or {})
        work()
    finally:
        os._exit(0)


def killed(work, seconds, environment=None):
    """Run `work` in a process of its own, and kill it after some seconds."""
    child = forked(work, environment)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


class TestKilled:
    """On 48 reviews and the model that comes with the package."""

    settings = Settings(methods=("attnlrp",), shard=6)

    @pytest.fixture(scope="class")
    def run(self):
        clf, texts = lrp.load_classifier(device="cpu"), stream_texts(limit=48)
        return partial(evaluate_dataset, clf, texts, settings=self.settings, quiet=True)

    @pytest.fixture(scope="class")
    def undisturbed(self, run, tmp_path_factory):
        return timed("cpu", lambda: rows_of(run(tmp_path_factory.mktemp("undisturbed"))))

    def test_alone(self, run, undisturbed, tmp_path, chance):
        seconds, rows = undisturbed
        done = []
        for _ in range(3):
            killed(lambda: run(tmp_path), chance.uniform(0, seconds / 3))
            done.append(len([*tmp_path.glob("shards/*.rows.parquet")]))
        assert done == sorted(done)
        pd.testing.assert_frame_equal(rows_of(run(tmp_path)), rows)
        assert not (tmp_path / "shards").exists()

    def test_a_lost_rank_costs_its_open_shard(self, run, undisturbed, tmp_path, chance):
        seconds, rows = undisturbed
        world = {"WORLD_SIZE": "2"}
        first = forked(lambda: run(tmp_path), world | {"RANK": "0"})
        killed(lambda: run(tmp_path), chance.uniform(0, seconds / 2), world | {"RANK": "1"})
        os.waitpid(first, 0)
        pd.testing.assert_frame_equal(rows_of(tmp_path), rows)
        assert not (tmp_path / "shards").exists()

    def test_under_torchrun_a_killed_worker_is_started_again(self, undisturbed, tmp_path, chance):
        log = tmp_path / "log"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
        command += ["-m", "lrputils", "evaluate", "--methods", "attnlrp", "--limit", "48"]
        command += ["--shard", "6", "--device", "cpu", "--out", str(tmp_path / "out")]
        with log.open("w") as told, subprocess.Popen(command, stdout=told, stderr=told) as agent:
            while not [*tmp_path.glob("out/shards/*.rows.parquet")] and agent.poll() is None:
                time.sleep(0.05)
            assert agent.poll() is None, log.read_text()
            children = f"/proc/{agent.pid}/task/{agent.pid}/children"
            with open(children) as listed:
                os.kill(int(chance.choice(listed.read().split())), signal.SIGKILL)
        assert agent.returncode == 0, log.read_text()
        pd.testing.assert_frame_equal(rows_of(tmp_path / "out"), undisturbed[1])
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            results.ROWS,
            results.PROVENANCE,
        }


class TestRanks:
    def test_the_costliest_shard_comes_first_and_the_rows_keep_their_order(
        self, whole, placeholder, tmp_path, monkeypatch
    ):
        order = []
        before_each_shard(monkeypatch, lambda shelf, number: order.append(shelf.parts.cost[number]))
        monkeypatch.setenv("WORLD_SIZE", "2")
        out = evaluate(placeholder, TEXTS, tmp_path)
        assert order == sorted(order, reverse=True)
        assert order != sorted(order)
        pd.testing.assert_frame_equal(rows_of(out), rows_of(whole))

    def test_the_others_measure_what_nobody_has_and_leave(
        self, unfinished, placeholder, monkeypatch
    ):
        work = work_folder(unfinished)
        monkeypatch.setenv("RANK", "1")
        with locked(work / "00000001.lock"):
            evaluate(placeholder, TEXTS, unfinished)
        assert sorted(path.name[:8] for path in work.glob("*.rows.parquet")) == [
            "00000000",
            "00000002",
        ]
        assert not (unfinished / results.ROWS).exists()


class TestGrowth:
    """To a finished run a call adds methods and texts."""

    def grown(self, clf, out, methods, limit, **options):
        settings = replace(SETTINGS, methods=methods)
        given = {"parameters": {"limit": limit}, "command": f"of {limit}", "quiet": True}
        return evaluate_dataset(clf, stream_texts(limit=limit), out, settings, **given | options)

    def test_methods_and_texts_are_added_and_loo_is_not_measured_again(
        self, placeholder, tmp_path, monkeypatch
    ):
        both = ("attnlrp", "grad-x-input")
        fresh = rows_of(self.grown(placeholder, tmp_path / "fresh", both, 10))
        out = self.grown(placeholder, tmp_path / "out", both[:1], 6)
        with monkeypatch.context() as patch:
            patch.setitem(lrp.METHODS, "loo", replace(lrp.METHODS["loo"], function=None))
            self.grown(placeholder, out, both[1:], 6)
        assert len(rows_of(out)) == 18
        self.grown(placeholder, out, both, 10)
        found = rows_of(out)
        assert list(found) == list(fresh)
        pd.testing.assert_frame_equal(
            found.drop(columns=["scores", "pieces", "content"]),
            fresh.drop(columns=["scores", "pieces", "content"]),
            atol=2e-4,
        )
        for ours, theirs in zip(found.scores, fresh.scores, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
        facts = results.facts(out)
        assert facts["command"] == "of 6 && of 6 && of 10"
        assert facts["parameters"]["methods"] == list(both)
        assert (facts["parameters"]["limit"], facts["data"]["texts"]) == (10, 10)

    def test_what_is_there_is_not_measured_and_the_rest_is_named(
        self, placeholder, tmp_path, monkeypatch, capsys
    ):
        out = self.grown(placeholder, tmp_path, ("attnlrp", "grad-x-input"), 6)
        before = (out / results.ROWS).read_bytes()
        for methods, limit in ((("grad-x-input",), 6), (("attnlrp",), 3), ((), 2)):
            self.grown(placeholder, out, methods, limit)
            assert "is finished: nothing to do" in capsys.readouterr().err
        with pytest.raises(ValueError, match=r"has 6 texts, .* added to all of them: limit=6"):
            self.grown(placeholder, out, ("ig",), 3)
        with pytest.raises(ValueError, match="with other max_length: name another folder"):
            evaluate(
                placeholder,
                stream_texts(limit=6),
                out,
                settings=replace(SETTINGS, methods=("ig",), max_length=9),
                parameters={"limit": 6},
            )
        assert (out / results.ROWS).read_bytes() == before

    def test_a_killed_addition_goes_on(self, placeholder, tmp_path, monkeypatch):
        out = self.grown(placeholder, tmp_path, ("attnlrp",), 10)
        with stopped_after_one_shard(monkeypatch):
            self.grown(placeholder, out, ("grad-x-input",), 10)
        assert len(rows_of(out)) == 20
        assert len(rows_of(self.grown(placeholder, out, ("grad-x-input",), 10))) == 30


class TestMistakes:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
    def test_a_full_disk(self, unfinished, whole, placeholder, monkeypatch, code):
        def full(*arguments, **options):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(pd.DataFrame, "to_parquet", full)
            with pytest.raises(OSError, match=r"is full.* make room and give the same"):
                evaluate(placeholder, TEXTS, unfinished)
        assert len([*unfinished.glob("shards/*.rows.parquet")]) == 1
        pd.testing.assert_frame_equal(
            rows_of(evaluate(placeholder, TEXTS, unfinished)), rows_of(whole)
        )

    @pytest.mark.parametrize("how", ["cut", "forged"])
    def test_a_damaged_shard_is_measured_again(self, unfinished, whole, placeholder, how, capsys):
        damage(work_folder(unfinished) / "00000000.rows.parquet", how)
        out = evaluate(placeholder, TEXTS, unfinished)
        assert "00000000.rows.parquet is damaged and measured again" in capsys.readouterr().err
        pd.testing.assert_frame_equal(rows_of(out), rows_of(whole))

    def test_a_shard_that_is_damaged_at_the_end_is_named(
        self, whole, placeholder, tmp_path, monkeypatch
    ):
        first = work_folder(tmp_path) / "00000000.rows.parquet"
        before_each_shard(monkeypatch, lambda _, number: number == 2 and damage(first, "forged"))
        with pytest.raises(ValueError, match=r"0\.rows\.parquet is damaged: the same command"):
            evaluate(placeholder, TEXTS, tmp_path)
        assert not (tmp_path / results.ROWS).exists()
        monkeypatch.undo()
        pd.testing.assert_frame_equal(
            rows_of(evaluate(placeholder, TEXTS, tmp_path)), rows_of(whole)
        )

    def test_two_runs_into_one_folder(self, placeholder, tmp_path, monkeypatch):
        real = datasets._measure

        def with_a_rival(*given):
            with pytest.raises(ValueError, match="another process is recording into"):
                evaluate(placeholder, TEXTS, tmp_path)
            return real(*given)

        monkeypatch.setattr(datasets, "_measure", with_a_rival)
        evaluate(placeholder, TEXTS, tmp_path)

    def test_the_folder_of_another_model(self, whole, unfinished, placeholder):
        model, tokenizer = untrained.build(seed=1)
        other = Classifier(model.eval(), tokenizer, "other")
        with pytest.raises(ValueError, match="holds a finished run of 'untrained' on 'reviews'"):
            evaluate(other, TEXTS, whole)
        with pytest.raises(ValueError, match="unfinished recording with model = sha256"):
            evaluate(other, TEXTS, unfinished)
        with pytest.raises(ValueError, match="unfinished recording with methods = "):
            evaluate(placeholder, TEXTS, unfinished, settings=replace(SETTINGS, methods=("ig",)))

    def test_a_text_that_does_not_fit(self, placeholder, tmp_path, capsys, monkeypatch):
        (tmp_path / "long.txt").write_text("dull\n" + "a film " * 20 + "\na fine film\n")
        texts, cut = stream_texts(tmp_path / "long.txt"), {"max_length": 12, "shard": 2}
        refuse = Settings(methods=(), long="refuse", **cut)
        with pytest.raises(ValueError, match=r"text '1' \('a film .*'…\) has more than 12 tokens"):
            evaluate(placeholder, texts, tmp_path / "out", settings=refuse)
        assert not (tmp_path / "out").exists()
        out = evaluate(
            placeholder, texts, tmp_path / "out", settings=Settings(methods=(), **cut), quiet=False
        )
        assert "too long" not in capsys.readouterr().err  # it was asked for
        assert list(rows_of(out).cut) == [False, True, False]
        assert results.facts(out)["cut"] == 1
        monkeypatch.setattr("lrputils.model.inputs.DEFAULT_MAX_LENGTH", 12)
        evaluate(placeholder, texts, tmp_path / "in", settings=Settings(()), quiet=False)
        assert "1 of 3 texts are too long, and cut" in capsys.readouterr().err

    def test_a_model_that_yields_nan(self, tmp_path):
        model, tokenizer = untrained.build()
        word = tokenizer.convert_tokens_to_ids("dull")
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight[word] = torch.nan
        texts = pd.DataFrame({"id": ["a", "b"], "text": ["a fine film", "a dull film"]})
        texts.to_json(tmp_path / "two.jsonl", orient="records", lines=True)
        clf = Classifier(model.eval().requires_grad_(False), tokenizer, "broken")
        with pytest.raises(ValueError, match=r"NaN .* in rows \[1\].* texts \['a', 'b'\]"):
            evaluate(clf, stream_texts(tmp_path / "two.jsonl"), tmp_path / "out")
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("", "--out DIR says where the rows go"),
            (
                "--out x --methods shap",
                "unknown method 'shap' (did you mean 'shapley'?); there are",
            ),
            ("--out x --long never", "--long 'never' is not one of ['cut', 'refuse']"),
            ("--out x --shard 0", "--shard 0: the smallest possible value is 1"),
            ("--out x --engine ray", "Ray is not installed: pip install 'lrputils[ray]'"),
            ("--out x --address auto", "--address 'auto' is of a cluster: add --engine ray"),
            ("--out x --dataset missing.csv", "missing.csv"),
            ("--out x --dataset empty.csv", "'empty' holds no texts"),
            ("--out x --dataset gap.csv", "has no text in row 1 of column 'text'"),
        ],
    )
    def test_on_the_command_line_they_get_one_line(
        self, arguments, message, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty.csv").write_text("text,label\n")
        (tmp_path / "gap.csv").write_text("text,label\na film,1\n,0\n")
        assert command_line.main(["evaluate", "--quiet", *arguments.split()]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1
        assert not (tmp_path / "x").exists()


class TestEstimate:
    def test_a_dry_run_writes_nothing(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert command_line.main(["evaluate", "--limit", "2", "--methods", "loo", "--dry-run"]) == 0
        assert "device hours" in capsys.readouterr().out
        assert not [*tmp_path.iterdir()]
