"""Evaluating a data set into a folder of parts: the rows, whatever happened meanwhile."""

import copy
import errno
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import lrputils as lrp
from lrputils.data.texts import stream_texts
from lrputils.model.classifier import EMBEDDED, load_classifier
from lrputils.runs import datasets, folders, parts, results
from lrputils.runs.datasets import evaluate_dataset, forecast_dataset, read
from lrputils.runs.settings import Settings
from lrputils.study.variants import Label, LayerSweep, at_every_readout
from tests import tiny

SETTINGS = Settings(methods=("attnlrp",), part_size=4, batch_size=2)
BOTH = replace(SETTINGS, methods=("attnlrp", "grad-x-input"))
TEXTS = stream_texts(limit=10)
evaluate = partial(evaluate_dataset, settings=SETTINGS, quiet=True)


@pytest.fixture(scope="module")
def whole(classifier, tmp_path_factory):
    """The folder of an undisturbed run of ten texts, in three parts."""
    return evaluate(classifier, TEXTS, tmp_path_factory.mktemp("whole"))


@pytest.fixture
def out(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "out")


def same_rows(folder, expected):
    pd.testing.assert_frame_equal(read(folder).rows, read(expected).rows)
    return not [*folder.rglob("*.partial")]


def files(folder):
    return sorted(folder.rglob("*.parquet"))


class TestRows:
    def test_they_are_what_evaluate_says_with_the_maps(self, whole, classifier):
        texts, rows = lrp.load_texts(limit=10), read(whole).rows
        found = lrp.evaluate(classifier, texts, ["attnlrp"], progress=False)
        assert list(rows.id) == [text for text in texts.ids for _ in range(2)]
        assert list(rows.method) == ["loo", "attnlrp"] * 10
        names = ["position", "target", "label", "tokens"]
        told = found.rows[names].astype(rows[names].dtypes)
        pd.testing.assert_frame_equal(rows[names], told)
        for column in ("r", "r_content", "r_normalised", "logit"):
            np.testing.assert_allclose(rows[column], found.rows[column], atol=1e-3)
        for n, text in enumerate(texts):
            loo, lrp_map = rows.iloc[2 * n], rows.iloc[2 * n + 1]
            assert loo.scores == pytest.approx(found.maps["loo"][n], abs=1e-5)
            assert (loo.passes, lrp_map.passes) == (loo.tokens, 3)
            assert lrp_map.scores == pytest.approx(found.maps["attnlrp"][n], abs=1e-4)
            assert tuple(lrp_map.pieces) == classifier.encode(text).tokens[0]
            ranks = [pd.Series(each).rank() for each in (loo.scores, lrp_map.scores)]
            assert lrp_map.spearman == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-3)

    def test_readouts_layers_and_curves_are_those_of_evaluate(self, classifier, tmp_path):
        """And what was asked for of some methods is measured of those that are added."""
        texts, places = lrp.load_texts(limit=4), ("word", "sum")
        wanted = {"readouts": places, "layers": True, "curves": 2, "part_size": 2}
        for methods in (("ig", "cp-lrp"), ("attnlrp",)):
            settings = Settings(methods, **wanted)
            evaluate(classifier, stream_texts(limit=4), tmp_path, settings=settings)
        asked = [*at_every_readout("attnlrp", "cp-lrp"), LayerSweep(places), "ig"]
        asked = [a for a in asked if getattr(a, "options", {}).get("readout") != "post-norm"]
        found = lrp.evaluate(classifier, texts, asked, chunk=2, progress=False).rows
        keys = ["id", *Label._fields]
        rows, found = (part.set_index(keys).sort_index() for part in (read(tmp_path).rows, found))
        assert [*rows.index] == [*found.index]
        assert rows.index.is_unique
        assert set(rows.xs("front", level="family").index.unique("layer")) == {1, 2}
        for column in ("r", "r_normalised", "morf", "lerf", "delta"):
            np.testing.assert_allclose(rows[column], found[column], atol=2e-3)
        for column in ("morf_curve", "lerf_curve"):
            for ours, theirs in zip(rows[column], found[column], strict=True):
                np.testing.assert_allclose(ours, theirs, atol=1e-3)

    def test_the_run_says_what_was_measured_and_by_what(self, whole, classifier):
        told, rows = read(whole).provenance, read(whole).rows.drop_duplicates("id")
        assert told["model"] == {"name": "untrained", **classifier.parts}
        assert told["versions"]["torch"] == torch.__version__
        assert told["versions"]["device"] == "cpu"
        assert (told["texts"], told["cut"], told["methods"]) == (10, 0, ["loo", "attnlrp"])
        assert told["accuracy"] == (rows.target == rows.label).mean()
        assert told["seconds"] > 0
        assert {path.name for path in whole.iterdir()} == {parts.RUN, parts.ROWS}


class Killed(BaseException):
    """What no handler catches."""


class TestKilled:
    def test_at_any_moment_of_writing_the_same_command_goes_on(
        self, classifier, tmp_path, monkeypatch
    ):
        """Before and after each file has its name; what a kill leaves is left, too."""
        few = {"texts": stream_texts(limit=3), "settings": replace(SETTINGS, part_size=2)}
        expected = read(evaluate(classifier, out=tmp_path / "undisturbed", **few)).rows
        for moment in range(100):
            out, real, seen = tmp_path / str(moment), os.replace, []

            def dying(source, place, *, real=real, seen=seen, moment=moment):
                seen.append(place)
                if len(seen) == moment // 2 + 1:
                    monkeypatch.setattr(folders.Path, "unlink", lambda *_, **__: None)
                    if moment % 2:
                        real(source, place)
                    raise Killed
                real(source, place)

            with monkeypatch.context() as patch:
                patch.setattr(folders.os, "replace", dying)
                try:
                    evaluate(classifier, out=out, **few)
                except Killed:
                    monkeypatch.undo()
                else:
                    break
            evaluate(classifier, out=out, **few)
            pd.testing.assert_frame_equal(read(out).rows, expected)
        assert moment == 2 * 5  # run.json, and two files of each of two parts

    def test_a_process_that_is_killed(self, classifier, tmp_path):
        """Whenever it is: the moment is not chosen here, and all of them are tried above."""
        out, run = tmp_path / "out", partial(evaluate, classifier, stream_texts(limit=32))
        child = os.fork()
        if not child:
            torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
            run(out)
            os._exit(0)
        while not files(out):
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert 0 < len(files(out)) < 16
        run(out)
        ours, theirs = (read(each).rows for each in (out, run(tmp_path / "undisturbed")))
        pd.testing.assert_frame_equal(ours, theirs, atol=1e-4)


class TestGrowth:
    """To a run a call adds methods and texts."""

    def grown(self, clf, out, settings, limit):
        given = {"parameters": {"limit": limit}, "settings": settings}
        return evaluate(clf, stream_texts(limit=limit), out, **given)

    def test_methods_and_texts_are_added_and_loo_is_not_measured_again(
        self, classifier, tmp_path, monkeypatch, capsys
    ):
        fresh = self.grown(classifier, tmp_path / "fresh", BOTH, 10)
        out = self.grown(classifier, tmp_path / "out", SETTINGS, 8)
        with monkeypatch.context() as patch:
            patch.setitem(lrp.METHODS, "loo", replace(lrp.METHODS["loo"], function=None))
            self.grown(classifier, out, replace(SETTINGS, methods=("grad-x-input",)), 8)
        assert len(read(out).rows) == 24
        self.grown(classifier, out, BOTH, 10)
        assert same_rows(out, fresh)
        assert capsys.readouterr().err == ""
        before = {path: path.stat().st_mtime_ns for path in files(out)}
        self.grown(classifier, out, SETTINGS, 10)
        assert "is complete: nothing to do" in capsys.readouterr().err
        assert {path: path.stat().st_mtime_ns for path in files(out)} == before

    def test_few_texts_are_in_smaller_parts_and_a_folder_keeps_its_size(self, classifier, tmp_path):
        usual = replace(SETTINGS, part_size=None)
        out = self.grown(classifier, tmp_path / "few", usual, 15)
        assert len([*out.glob("rows/part=*")]) == 8
        out = self.grown(classifier, tmp_path / "named", SETTINGS, 4)
        self.grown(classifier, out, usual, 8)
        assert len([*out.glob("rows/part=*")]) == 2
        texts = stream_texts(limit=4)
        with pytest.raises(ValueError, match=r"limit=4|has 8 texts"):
            forecast_dataset(classifier, texts, out, usual, parameters={"limit": 4})

    def test_a_forecast_is_of_what_a_folder_lacks(self, classifier, tmp_path):
        def foreseen(settings, limit):
            how = {"parameters": {"limit": limit}}
            texts = stream_texts(limit=limit)
            return forecast_dataset(classifier, texts, tmp_path, settings, **how)

        assert {*foreseen(SETTINGS, 8).seconds} == {"loo", "attnlrp"}
        self.grown(classifier, tmp_path, SETTINGS, 8)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        assert "is complete: nothing to do" in foreseen(SETTINGS, 8)
        assert (foreseen(BOTH, 8).texts, {*foreseen(BOTH, 8).seconds}) == (8, {"grad-x-input"})
        more = foreseen(BOTH, 12)
        assert (more.texts, {*more.seconds}) == (12, {"loo", "attnlrp", "grad-x-input"})
        assert foreseen(SETTINGS, 12).texts == 4
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    def test_a_method_is_added_with_its_options(self, classifier, tmp_path):
        out = self.grown(classifier, tmp_path / "out", SETTINGS, 6)
        groups = ("Mask gradient:groups=2", "mask-gradient")
        self.grown(classifier, out, replace(SETTINGS, methods=groups), 6)
        rows = read(out).rows.set_index(["method", "options"]).sort_index()
        found = {key: rows.loc[key].scores for key in rows.index.unique() if "mask" in key[0]}
        assert {*found} == {("mask-gradient", "groups=2"), ("mask-gradient", "")}
        texts = lrp.load_texts(limit=6)
        for (method, options), scores in found.items():
            how = {"groups": 2} if options else {}
            exact = lrp.attribute(classifier, classifier.encode(list(texts)), method, **how)
            for ours, theirs in zip(scores, exact.numpy(), strict=True):
                np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-4)

    def test_a_part_that_gets_more_texts_is_measured_again(self, classifier, tmp_path, capsys):
        out = self.grown(classifier, tmp_path / "out", SETTINGS, 6)
        self.grown(classifier, out, SETTINGS, 10)
        assert "of other texts and count, and measured again" in capsys.readouterr().err
        assert same_rows(out, self.grown(classifier, tmp_path / "fresh", SETTINGS, 10))

    def test_fewer_texts_are_refused_and_nothing_is_lost(self, classifier, out):
        before = read(out).rows
        with pytest.raises(ValueError, match=r"has 10 texts: limit=10 or more goes on"):
            self.grown(classifier, out, BOTH, 3)
        pd.testing.assert_frame_equal(read(out).rows, before)


class TestAnotherRun:
    """What decides the rows: of another one nothing is mixed with them."""

    @pytest.mark.parametrize("part", ["weights", "configuration", "tokenizer", "max_length"])
    def test_is_refused_by_name(self, classifier, whole, part):
        other, settings = copy.deepcopy(classifier), SETTINGS
        if part == "weights":
            other = tiny.classifier(seed=1, name="other")
        elif part == "tokenizer":
            other.tokenizer.backend_tokenizer.normalizer = None
        elif part == "configuration":
            other.model.config.hidden_act = "relu"
        else:
            settings = replace(SETTINGS, max_length=9)
        said = f"holds a run of 'untrained' on 'reviews' with other {part}.*: name another folder"
        with pytest.raises(ValueError, match=said):
            evaluate(other, TEXTS, whole, settings=settings)

    def test_of_other_texts(self, classifier, tmp_path):
        (tmp_path / "a.txt").write_text("a fine film\ndull\n")
        out = evaluate(classifier, stream_texts(tmp_path / "a.txt"), tmp_path / "out")
        (tmp_path / "a.txt").write_text("a fine film\ndul\n")
        with pytest.raises(ValueError, match="with other texts: name another folder"):
            evaluate(classifier, stream_texts(tmp_path / "a.txt"), out)

    @pytest.mark.parametrize(("name", "value"), [("torch", "1.13"), ("lrputils", "0.1 abc")])
    def test_of_other_code(self, classifier, whole, monkeypatch, name, value):
        real = parts.versions
        monkeypatch.setattr(parts, "versions", lambda kind: {**real(kind), name: value})
        with pytest.raises(ValueError, match=rf"with other {name} \(.*, now {value}\)"):
            evaluate(classifier, TEXTS, whole, settings=BOTH)

    @pytest.mark.filterwarnings("ignore:.* answers are cut behind")
    def test_of_another_generation_configuration(self, tmp_path):
        clf = tiny.speaking()
        texts = stream_texts(limit=2, answers="own")
        texts = replace(texts, each=partial(clf.answered, most=4))
        out = evaluate(clf, texts, tmp_path / "out")
        asked = clf._said.copy()
        clf._said.clear()
        evaluate(clf, texts, out)
        assert asked
        assert not clf._said  # of what is there nothing is asked again
        clf.model.generation_config.repetition_penalty = 3.0
        with pytest.raises(ValueError, match="with other generation: name another folder"):
            evaluate(clf, texts, out)

    def test_the_model_is_the_same_wherever_it_lies_and_whatever_it_has_read(self, tmp_path):
        own = load_classifier(EMBEDDED, device="cpu")
        before = own.parts
        own.encode(["a film", "a film that is never dull"], 4, truncate=True)
        shutil.copytree(EMBEDDED, tmp_path / "elsewhere")
        elsewhere = load_classifier(tmp_path / "elsewhere", device="cpu")
        assert elsewhere.parts == own.parts == before


class TestDamage:
    @pytest.mark.parametrize("how", ["cut", "forged", "copied", "foreign", "gone"])
    def test_a_part_is_measured_again_and_that_is_said(self, classifier, whole, out, how, capsys):
        first, second = files(out)[:2]
        content = bytearray(first.read_bytes())
        if how == "cut":
            first.write_bytes(content[:-9])
        elif how == "forged":
            content[300] ^= 1
            first.write_bytes(content)
        elif how == "copied":
            shutil.copy(second, first)
        elif how == "gone":
            first.unlink()
        else:
            other = tiny.classifier(seed=1, name="other")
            theirs = evaluate(other, TEXTS, out.with_name("other"))
            shutil.copy(files(theirs)[0], first)
        with pytest.raises(ValueError, match="the same command"):
            read(out)
        evaluate(classifier, TEXTS, out)
        assert ("and measured again" in capsys.readouterr().err) == (how != "gone")
        assert same_rows(out, whole)

    def test_run_json(self, classifier, out):
        told = (out / parts.RUN).read_bytes()
        (out / parts.RUN).write_bytes(told[:-9])
        with pytest.raises(ValueError, match=r"run\.json is damaged .*: remove it, and"):
            evaluate(classifier, TEXTS, out)
        (out / parts.RUN).unlink()
        with pytest.raises(ValueError, match=r"holds rows without the run\.json that says of what"):
            evaluate(classifier, TEXTS, out)
        (out / parts.RUN).write_text("[]")
        with pytest.raises(ValueError, match="is of another program: name another folder"):
            evaluate(classifier, TEXTS, out)


def before_each_part(patch, act):
    """Call `act` with each part before it is measured."""
    real = datasets.measure_part

    def measured(*given):
        act(given[-1])
        return real(*given)

    patch.setattr(datasets, "measure_part", measured)


class TestFolder:
    def test_two_processes_do_not_spoil_each_other(self, classifier, whole, tmp_path, monkeypatch):
        def rival(part):
            if part.number == 1:
                monkeypatch.undo()
                evaluate(classifier, TEXTS, tmp_path)

        before_each_part(monkeypatch, rival)
        evaluate(classifier, TEXTS, tmp_path)
        assert same_rows(tmp_path, whole)

    def test_two_that_begin_with_different_things(self, classifier, tmp_path, monkeypatch):
        def rival(part):
            monkeypatch.undo()
            evaluate(classifier, TEXTS, tmp_path, settings=replace(SETTINGS, max_length=9))

        before_each_part(monkeypatch, rival)
        with pytest.raises(ValueError, match="with other max_length"):
            evaluate(classifier, TEXTS, tmp_path)

    @pytest.mark.parametrize("how", ["moved", "removed"])
    def test_that_goes_away_while_it_is_written(
        self, classifier, whole, tmp_path, monkeypatch, how
    ):
        out = tmp_path / "out"

        def goes(part):
            if part.number == 2:
                out.rename(tmp_path / "elsewhere")
            if part.number == 2 and how == "removed":
                shutil.rmtree(tmp_path / "elsewhere")

        with monkeypatch.context() as patch:
            before_each_part(patch, goes)
            with pytest.raises(OSError, match="was moved or removed while it was written"):
                evaluate(classifier, TEXTS, out)
        if how == "moved":
            assert same_rows(evaluate(classifier, TEXTS, tmp_path / "elsewhere"), whole)

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
    def test_on_a_full_disk(self, classifier, whole, tmp_path, monkeypatch, code):
        def full(part):
            if part.number == 1:
                error = OSError(code, os.strerror(code))
                monkeypatch.setattr(
                    parts.pq, "write_table", lambda *_, **__: (_ for _ in ()).throw(error)
                )

        before_each_part(monkeypatch, full)
        with pytest.raises(OSError, match=r"is full.* make room and give the same command again"):
            evaluate(classifier, TEXTS, tmp_path)
        monkeypatch.undo()
        assert len(files(tmp_path)) == 2
        assert same_rows(evaluate(classifier, TEXTS, tmp_path), whole)

    def test_that_is_a_broken_link(self, classifier, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "gone")
        with pytest.raises(OSError, match=r"link is a link to .*gone, which is not there"):
            evaluate(classifier, TEXTS, tmp_path / "link")


class TestMistakes:
    def test_a_text_that_does_not_fit(self, classifier, tmp_path, capsys, monkeypatch):
        (tmp_path / "long.txt").write_text("dull\n" + "a film " * 20 + "\na fine film\n")
        texts, cut = stream_texts(tmp_path / "long.txt"), {"max_length": 12, "part_size": 2}
        settings = Settings(methods=(), **cut)
        out = evaluate(classifier, texts, tmp_path / "out", settings=settings)
        assert "too long" not in capsys.readouterr().err  # it was asked for
        assert list(read(out).rows.cut) == [False, True, False]
        assert read(out).provenance["cut"] == 1
        monkeypatch.setattr("lrputils.model.inputs.DEFAULT_MAX_LENGTH", 12)
        evaluate(classifier, texts, tmp_path / "in", settings=Settings(()))
        assert "1 of 3 texts are too long, and cut" in capsys.readouterr().err

    def test_a_model_that_yields_nan(self, tmp_path):
        clf = tiny.classifier(name="broken")
        word = clf.tokenizer.convert_tokens_to_ids("dull")
        clf.model.get_input_embeddings().weight[word] = torch.nan
        texts = pd.DataFrame({"id": ["a", "b"], "text": ["a fine film", "a dull film"]})
        texts.to_json(tmp_path / "two.jsonl", orient="records", lines=True)
        with pytest.raises(ValueError, match=r"NaN .* in rows \[1\].* texts \['a', 'b'\]"):
            evaluate(clf, stream_texts(tmp_path / "two.jsonl"), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_an_installed_copy_records_its_version(tmp_path, monkeypatch):
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    installed = tmp_path / "venv" / "lrputils" / "runs" / "results.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    monkeypatch.setattr(results, "__file__", str(installed))
    assert results.revision() == f"lrputils {lrp.__version__}"
