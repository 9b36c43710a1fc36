"""What a run believes of what it finds: the model, the rows, the parts; and kills while it ends."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest

import lrputils
from lrputils.data.texts import stream_texts
from lrputils.model.classifier import EMBEDDED, load_classifier
from lrputils.runs import datasets, engines, results
from lrputils.runs.datasets import evaluate_dataset
from lrputils.runs.folders import PLAN, TEXTS, locked, work_folder
from lrputils.runs.settings import Settings
from lrputils.runs.shelf import Shelf
from tests.runs.test_datasets import damage, forked, rows_of

SETTINGS = Settings(methods=("attnlrp",), shard=2, batch_size=2)
TEXTS_OF_FOUR = stream_texts(limit=4)
MORE = ("attnlrp", "cp-lrp")
evaluate = partial(evaluate_dataset, texts=TEXTS_OF_FOUR, settings=SETTINGS, quiet=True)
# What Python does to files: each is a moment in which a kill leaves something else behind.
_MOMENTS = ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


@pytest.fixture(scope="module")
def whole(placeholder, tmp_path_factory):
    return evaluate(placeholder, out=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def grown(placeholder, whole, tmp_path_factory):
    out = copied(whole, tmp_path_factory.mktemp("grown") / "out")
    return evaluate(placeholder, out=out, settings=replace(SETTINGS, methods=MORE))


def measured(clf, out, settings=SETTINGS):
    """A folder with all shards of a run, and its rows not written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "write", None)
        with pytest.raises(TypeError):
            evaluate(clf, out=out, settings=settings)
    return out


@pytest.fixture
def unfinished(placeholder, tmp_path):
    return measured(placeholder, tmp_path / "out")


def copied(folder, out):
    return shutil.copytree(folder, out)


def assert_rows(out, expected):
    assert {path.name for path in out.iterdir()} == {results.ROWS, results.PROVENANCE}
    pd.testing.assert_frame_equal(rows_of(out), rows_of(expected))
    assert results.facts(out, checked=True)["rows"]["count"] == len(rows_of(expected))


def killed_while_it_ends(work, moment):
    """Run `work` in a process that is killed at this moment of its end; return whether it was."""

    def dies():
        real, moments = results.write, itertools.count()

        def watched(*given):
            def dying(event, arguments):
                writes = event == "open" and isinstance(arguments[1], str) and "+" in arguments[1]
                if (event in _MOMENTS or writes) and next(moments) == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(dying)
            return real(*given)

        engines.write = watched
        work()

    _, status = os.waitpid(forked(dies), 0)
    return os.WIFSIGNALED(status)


class TestKilledWhileItEnds:
    def test_the_same_command_goes_on_wherever_it_was(
        self, placeholder, whole, unfinished, tmp_path
    ):
        for moment in itertools.count():
            run = partial(evaluate, placeholder, out=copied(unfinished, tmp_path / str(moment)))
            if not killed_while_it_ends(run, moment):
                break
            assert_rows(run(), whole)
        assert moment >= 10

    def test_also_while_methods_are_added_and_others_can_be_added_then(
        self, placeholder, whole, grown, tmp_path
    ):
        more = replace(SETTINGS, methods=MORE)
        ended = measured(placeholder, copied(whole, tmp_path / "ended"), more)
        for moment in itertools.count():
            out = copied(ended, tmp_path / str(moment))
            add = partial(evaluate, placeholder, out=out, settings=more)
            if not killed_while_it_ends(add, moment):
                break
            if results.facts(out)["parameters"]["methods"] != [*MORE]:
                assert_rows(add(), grown)
            third = replace(SETTINGS, methods=(*MORE, "grad-x-input"))
            last = evaluate(placeholder, out=out, settings=third)
            assert len(rows_of(last)) == 16
            assert_rows(last, last)
        assert moment >= 10


class TestModel:
    """Its weights, its configuration and its tokenizer."""

    @pytest.mark.parametrize("part", ["configuration", "tokenizer"])
    def test_a_change_is_refused_by_name(self, placeholder, whole, unfinished, part):
        other = copy.deepcopy(placeholder)
        if part == "tokenizer":
            other.tokenizer.backend_tokenizer.normalizer = None
        else:
            other.model.config.hidden_act = "relu"
        assert other.identity == placeholder.identity
        with pytest.raises(ValueError, match=f"unfinished recording with {part} = sha256 "):
            evaluate(other, out=unfinished)
        with pytest.raises(ValueError, match=f"with other {part}: name another folder"):
            evaluate(other, out=whole)
        assert results.facts(whole)["model"][part] == placeholder.parts[part]

    def test_it_is_the_same_wherever_it_lies_and_whatever_it_has_read(self, tmp_path):
        own = load_classifier(EMBEDDED, device="cpu")
        before = own.parts
        own.encode(["a film", "a film that is never dull"], 4, truncate=True)
        shutil.copytree(EMBEDDED, tmp_path / "elsewhere")
        elsewhere = load_classifier(tmp_path / "elsewhere", device="cpu")
        assert elsewhere.parts == own.parts == before


class TestFinished:
    @pytest.mark.parametrize("how", ["gone", "cut", "forged"])
    def test_rows_that_are_not_its_own_are_refused_and_not_signed(
        self, placeholder, whole, tmp_path, how
    ):
        out = copied(whole, tmp_path / "out")
        damage(out / results.ROWS, how)
        for methods in (SETTINGS.methods, MORE):
            settings = replace(SETTINGS, methods=methods)
            with pytest.raises(ValueError, match=r"put the rows back, or remove provenance\.json"):
                evaluate(placeholder, out=out, settings=settings)
        assert results.facts(out) == results.facts(whole)
        (out / results.PROVENANCE).unlink()
        assert_rows(evaluate(placeholder, out=out), whole)

    def test_a_damaged_provenance_is_named(self, placeholder, whole, tmp_path):
        out = copied(whole, tmp_path / "out")
        damage(out / results.PROVENANCE, "cut")
        with pytest.raises(ValueError, match=r"provenance\.json is damaged .*: remove it, and"):
            evaluate(placeholder, out=out)


class TestUnfinished:
    def test_a_shard_that_another_overwrote_is_measured_again(
        self, placeholder, whole, unfinished, capsys
    ):
        first, second = sorted(work_folder(unfinished).glob("*.rows.parquet"))
        shutil.copy(first, second)
        assert_rows(evaluate(placeholder, out=unfinished), whole)
        assert "00000001.rows.parquet is damaged and measured again" in capsys.readouterr().err

    def test_letters_that_were_changed_in_the_texts_are_read_again(
        self, placeholder, whole, unfinished, capsys
    ):
        work = work_folder(unfinished)
        text = next(TEXTS_OF_FOUR.parts(1))[0].encode()
        content = (work / TEXTS).read_bytes()
        assert text in content
        (work / TEXTS).write_bytes(content.replace(text, text.swapcase()))
        (work / "00000000.rows.parquet").unlink()
        assert_rows(evaluate(placeholder, out=unfinished), whole)
        assert "texts.arrow is damaged, and made again" in capsys.readouterr().err

    def test_letters_that_change_while_it_runs_stop_it(self, unfinished):
        shelf = Shelf(work_folder(unfinished) / TEXTS)
        shelf.parts.loc[0, "digest"] = "another"
        with pytest.raises(ValueError, match="the stored texts were changed"):
            shelf.take(0)

    @pytest.mark.parametrize("name", [PLAN, TEXTS])
    @pytest.mark.parametrize("how", ["gone", "cut"])
    def test_a_damaged_file_is_made_again(self, placeholder, whole, unfinished, name, how, capsys):
        damage(work_folder(unfinished) / name, how)
        assert_rows(evaluate(placeholder, out=unfinished), whole)
        if how == "cut":
            assert f"{name} is damaged, and made again" in capsys.readouterr().err

    def test_waiting_says_for_whom(self, placeholder, whole, unfinished, monkeypatch, capsys):
        (work_folder(unfinished) / "00000001.rows.parquet").unlink()
        monkeypatch.setattr(engines, "_LONG", 0)
        looks, stalled = itertools.count(), locked(work_folder(unfinished) / "00000001.lock")
        assert stalled.__enter__() == ""

        def look_again(seconds):
            if next(looks) == 3:
                stalled.__exit__(None, None, None)

        monkeypatch.setattr(engines.time, "sleep", look_again)
        assert_rows(evaluate(placeholder, out=unfinished), whole)
        told = capsys.readouterr().err
        assert told.count("waiting for shard 00000001: process") == 1
        assert f"process {os.getpid()} on " in told

    def test_a_run_that_another_process_finished_meanwhile(
        self, placeholder, whole, grown, tmp_path, monkeypatch
    ):
        out, real = copied(whole, tmp_path / "out"), datasets.in_shards
        add = partial(evaluate, placeholder, out=out)

        def late(*given, **how):
            monkeypatch.undo()
            add(settings=replace(SETTINGS, methods=MORE))
            return real(*given, **how)

        monkeypatch.setattr(datasets, "in_shards", late)
        with pytest.raises(ValueError, match="another process wrote into"):
            add(settings=replace(SETTINGS, methods=("ig",)))
        assert_rows(out, grown)

    def test_a_link_to_nothing(self, placeholder, tmp_path):
        (tmp_path / "out").symlink_to(tmp_path / "gone")
        with pytest.raises(OSError, match=r"out is a link to .*gone, which is not there"):
            evaluate(placeholder, out=tmp_path / "out")


def test_an_installed_copy_records_its_version(tmp_path, monkeypatch):
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    installed = tmp_path / "venv" / "lrputils" / "runs" / "results.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(results, "__file__", str(installed))
    assert results._revision() == f"lrputils {lrputils.__version__}"
