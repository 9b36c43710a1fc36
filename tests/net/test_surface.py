"""What users and readers meet, compared with the files of `surface/`."""

from __future__ import annotations

import re

import pytest

from tests.net import surface


def _kept(name: str) -> list[str]:
    return (surface.FOLDER / name).read_text(encoding="utf-8").splitlines()


def _found(name: str) -> list[str]:
    return "\n".join(surface.GOLDEN[name]()).rstrip().splitlines()


@pytest.mark.parametrize("name", [name for name in surface.GOLDEN if name != "help.txt"])
def test_it_is_as_it_was(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert _found(name) == _kept(name)


def test_help_is_as_it_was():
    """The words and their order: argparse breaks lines, and names a value, as Python's version."""

    def words(lines: list[str]) -> list[str]:
        text = re.sub(r"(--?\w[\w-]*) ([A-Z][\w,]*), (?=--\w[\w-]* \2)", r"\1, ", "\n".join(lines))
        return text.split()

    assert words(_found("help.txt")) == words(_kept("help.txt"))


def test_a_refusal_is_one_sentence_and_nothing_stays_behind():
    told = _kept("refusals.txt")
    assert told[-1].endswith(": none")
    for command, sentence in zip(told[:-1:2], told[1::2], strict=True):
        assert command.startswith("$ ")
        assert sentence.startswith("1: ")
