import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lrputils
from lrputils.__main__ import APP, main
from lrputils.runs.datasets import read
from tests.book.alone import say_help

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Every module that is started by name, and every verb of `lrputils`."""
    files = (f for room in ("lrputils", "experiments") for f in (ROOT / room).rglob("*.py"))
    named = [f for f in files if '__name__ == "__main__"' in f.read_text(encoding="utf-8")]
    dotted = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in named]
    verbs = [f"lrputils {verb}" for verb in APP if not verb.startswith("-")]
    return [name.removesuffix(".__main__") for name in dotted] + verbs


def test_every_command_says_its_options_in_a_process_of_its_own():
    """What one of them imports first, another process of the tests would have long imported.

    Each is a fork of a process that holds the libraries and nothing of the project.
    """
    context = multiprocessing.get_context("forkserver")
    libraries = ["torch._dynamo", "pandas", "scipy.stats", "transformers", "seaborn", "cyclopts"]
    context.set_forkserver_preload(libraries)
    asked = commands()
    assert len(asked) > 10
    for command in asked:
        heard, told = context.Pipe(duplex=False)
        process = context.Process(target=say_help, args=(command, told))
        process.start()
        status, said, complaints = heard.recv()
        process.join()
        assert (status, said[:6], complaints) == (0, "Usage:", ""), command


@pytest.fixture
def in_book(small_book, monkeypatch):
    monkeypatch.chdir(small_book.root)
    return small_book


def test_a_raising_chapter_ends_with_status_one_and_its_name(in_book, capsys):
    chapter = in_book.chapter("1")
    chapter.with_suffix(".ipynb").write_text("kept")
    chapter.write_text(chapter.read_text().replace("1 / factor", "1 / (factor - 2)"))
    assert main(["execute", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "lrputils: 01_short: code cell 3 failed: ZeroDivisionError: float division by zero; "
        "the run as far as it got: _build/executed/offline/01_short.failed.ipynb\n"
    )
    assert chapter.with_suffix(".ipynb").read_text() == "kept"


def test_execute_refreshes_the_twin_and_plain_papermill_runs_it_from_elsewhere(
    in_book, tmp_path, monkeypatch, capsys
):
    assert main(["execute", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == ["chapters/01_short.ipynb"]
    assert "0.5" in in_book.chapter("1").with_suffix(".ipynb").read_text()
    monkeypatch.chdir(tmp_path)
    twin = str(in_book.chapter("1").with_suffix(".ipynb"))
    command = [sys.executable, "-m", "papermill", twin, "out.ipynb", "--no-progress-bar", "-p"]
    run = subprocess.run([*command, "factor", "8.0"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "0.125" in (tmp_path / "out.ipynb").read_text()
    run = subprocess.run([*command, "fctor", "8.0"], capture_output=True, text=True)
    assert run.returncode == 1
    assert "this chapter has no parameter 'fctor'; it has: factor, count" in run.stderr


def test_the_version_and_the_methods_in_a_few_words_are_listed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lrputils {lrputils.__version__}\n"
    assert main(["methods"]) == 0
    name, *methods = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split()[0] for line in methods] == [*lrputils.METHODS]
    told = [line[name.index("what it is") :] for line in methods]
    assert all(0 < len(re.findall(r"[^\W\d]{2,}", each)) <= 12 for each in told)


def test_an_error_names_what_is_wrong_and_the_user_s_own_path(tmp_path, capsys):
    place = tmp_path / "text_column" / "limit=3.csv"
    assert main(["evaluate", "--dry-run", "--dataset", str(place)]) == 1
    assert f"dataset={str(place)!r}: there is no such file" in capsys.readouterr().err
    place.parent.mkdir()
    place.write_text("a,b\n1,2\n")
    assert main(["evaluate", "--dry-run", "--dataset", str(place)]) == 1
    said = capsys.readouterr().err
    assert "Data set 'limit=3' has none of the columns" in said
    assert "choose text_column (in a chapter, `columns`)" in said
    with pytest.raises(ValueError, match=r"'limit=3' has none .* choose text_column \(in"):
        lrputils.load_texts(place)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("option", [[], ["--labels", "ok = POSITIVE,no good=negative"]])
def test_labels_are_called_otherwise_in_the_model(option, tmp_path, capsys):
    place = tmp_path / "x.csv"
    place.write_text("text,label\na wonderful film,ok\nan awful film,no good\n")
    command = ["evaluate", "--dataset", str(place), "--methods", "mask-gradient", *option]
    assert main([*command, "--quiet", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert ("Accuracy is left out, and all else goes on. --labels ok=CLASS" in said) == (not option)
    assert read(tmp_path / "out").provenance["accuracy"] == (1.0 if option else None)


def test_a_dry_run_tells_the_time(capsys):
    assert main(["explain", "a film", "--dry-run", "--target", "positive"]) == 0
    assert "\ntime    " in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_hears_at_once_what_is_loaded(terminal, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    for verb in ("explain a", "audit --out x", "evaluate --out x", "check"):
        assert main([*verb.split(), "--model", str(tmp_path)]) == 1
        assert capsys.readouterr().err.startswith(f"loading {tmp_path} …\n") == terminal
    assert main(["evaluate", "--out", "x", "--quiet", "--model", str(tmp_path)]) == 1
    assert "loading" not in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lrputils.report.explain", None)
    assert main(["explain", "a film"]) == 1
    assert "; in this repository's folder, pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        SystemError("error return without exception set"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_a_lack_of_memory_is_one_sentence(monkeypatch, capsys, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("lrputils.model.classifier.load_classifier", fails)
    assert main(["explain", "a film"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("lrputils: not enough memory: ")
    assert said.count("\n") == 1


def test_a_text_in_utf_8_is_read_in_locale_c(capsys):
    assert main(["explain", "a na\udcc3\udcafve film", "--methods", "mask-gradient"]) == 0
    assert "naïve" in capsys.readouterr().out
