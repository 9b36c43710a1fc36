"""Whole files only, and one process at a time in a folder."""

import subprocess
import sys

import pytest

from lrputils.runs.folders import atomic_write, claimed


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with atomic_write(path) as partial:
        partial.write_text("first")
    with pytest.raises(TypeError), atomic_write(path) as partial:
        partial.write_text(b"not a text")
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_parts_are_found_again_by_the_same_plan_only(tmp_path):
    with pytest.raises(FileExistsError), claimed(tmp_path, {"n": 1}) as work:
        [(work / "part").touch(exist_ok=False) for _ in range(2)]
    with pytest.raises(ValueError, match="with n = 1, now it is 2"), claimed(tmp_path, {"n": 2}):
        pass
    with claimed(tmp_path, {"n": 1}) as work:
        assert (work / "part").exists()
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(ValueError, match=r"rows\.parquet is a file: name a folder"):
        claimed(tmp_path / "rows.parquet", {}).__enter__()


def test_a_killed_process_holds_nothing(tmp_path):
    code = (
        "import sys, pathlib; from lrputils.runs.folders import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1]), {'n': 1}):\n"
        "    print('claimed', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"claimed\n"
        rival = pytest.raises(ValueError, match="another process is recording into")
        with rival, claimed(tmp_path, {"n": 1}):
            pass
        holder.kill()
    with claimed(tmp_path, {"n": 2}):
        pass
    assert not list(tmp_path.iterdir())
