"""The keep-list: its tests are in the sources, nothing new is skipped, and the census bites."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.net.census import ROOT, Kept, complaints, kept

TESTS = ROOT / "tests"
SKIPS = Path(__file__).with_name("skips.txt")
_SKIPPING = re.compile(r"(pytest\.skip\(.*|importorskip\(.*|skipif\(.*|mark\.skip.*|xfail.*)")


_EXEMPT = re.compile(r"nbval-(skip|ignore)|raises-exception")
EXEMPT = {"04_imdb"}  # an output that names the machine


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _names(path: Path) -> set[str]:
    """Ids of the tests that a file defines, without parameters."""
    found = set()
    for node in ast.parse(_text(path)).body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + part.name for part in parts if isinstance(part, ast.FunctionDef)}
    return found


def skips() -> list[str]:
    """Every place of the tests that may skip one, without its line number."""
    return sorted(
        f"{path.relative_to(ROOT).as_posix()}: {found[1].strip()}"
        for path in TESTS.rglob("*.py")
        if not path.is_relative_to(TESTS / "net")
        for line in _text(path).splitlines()
        if (found := _SKIPPING.search(line))
    )


@pytest.mark.parametrize("test", [one.test for one in kept()])
def test_a_kept_test_is_in_its_file(test):
    file, name = test.split("::", 1)
    assert (ROOT / file).is_file()
    assert name.split("[")[0] in _names(ROOT / file)


def test_nothing_else_may_skip():
    assert skips() == SKIPS.read_text(encoding="utf-8").splitlines()


def test_the_census_is_taken_of_every_session(pytestconfig):
    known = _text(ROOT / "conftest.py")
    assert 'pytest_plugins = ["tests.net.census"]' in known
    assert "-p no:census" not in _text(ROOT / "Makefile")


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        ({}, ["a.py::test_x is gone", "b.py::test_y is gone"]),
        ({"a.py::test_x_too": None, "b.py::test_y": None}, ["a.py::test_x is gone"]),
        ({"a.py::test_x[1]": None, "b.py::test_y": "no Chromium is here"}, []),
        ({"a.py::test_x": None, "b.py::test_y": "slow"}, ["b.py::test_y was skipped: slow"]),
        (
            {"a.py::test_x[1]": None, "a.py::test_x[2]": "slow", "b.py::test_y": None},
            ["a.py::test_x[2] was skipped: slow"],
        ),
    ],
)
def test_what_is_gone_or_starts_to_skip_is_named(ran, said):
    assert complaints([Kept("a.py::test_x"), Kept("b.py::test_y", "no Chromium")], ran) == said


def test_a_part_of_the_tests_answers_for_itself():
    keep = [Kept("tests/a/test_a.py::test_x"), Kept("tests/b/test_b.py::test_y")]
    assert complaints(keep, {"tests/a/test_a.py::test_x": None}, ["tests/a"]) == []


def test_every_chapter_is_compared_strictly_on_two_instruction_sets():
    """By `make test`, or by what continuous integration runs."""
    commands = "".join(_text(ROOT / name) for name in ("Makefile", ".ci/run"))
    assert re.search(r"ATEN_CPU_CAPABILITY\s*:?=\s*default", commands)
    assert "make older" in commands
    assert re.search(r"--nbval\b.*\bchapters", commands)
    assert not re.search(r"nbval-lax|nbval-sanitize|--ignore", commands)
    exempt = {path.stem for path in (ROOT / "chapters").glob("*.md") if _EXEMPT.search(_text(path))}
    assert exempt <= EXEMPT


def test_the_wheel_is_tried_elsewhere():
    workflow = _text(ROOT / ".github/workflows/habits.yml")
    assert "pip wheel --no-deps" in workflow
    assert "-I wheel_check.py" in workflow
    assert (ROOT / ".ci/wheel_check.py").stat().st_size > 500
