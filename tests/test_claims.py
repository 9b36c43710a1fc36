"""The page of claims: a row a claim, each with a place, a verdict and a reason."""

from __future__ import annotations

import re

import pytest

from lrputils.book.layout import find_book

TEXT = find_book().chapter("claims").text.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if re.match(r"\| \d+ \|", line)
]
VERDICTS = set(re.findall(r"^\*\*([a-z ]+)\*\*\n:", TEXT, re.MULTILINE))


def test_every_claim_has_its_row():
    assert [int(row[0]) for row in ROWS] == list(range(1, 99))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_complete(row):
    _, says, where, found, on = row
    assert all([says, where, found, on])
    assert "absent" not in found
    assert set(re.findall(r"\*\*([a-z ]+)\*\*", found)) <= VERDICTS


@pytest.mark.parametrize("row", [r for r in ROWS if "**not measured**" in r[3]], ids=lambda r: r[0])
def test_what_was_not_measured_has_a_reason(row):
    after = row[3].partition("**not measured**")[2]
    assert len(after.split()) >= 4
