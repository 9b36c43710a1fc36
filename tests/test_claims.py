"""The page of claims: a row a claim, each with a place, a verdict and a reason."""

from __future__ import annotations

import re

import pytest

from lrputils.book.layout import find_book

TEXT = find_book().chapter("claims").read_text(encoding="utf-8")
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

    _, unmeasured, reason = found.partition("**not measured**")
    assert not unmeasured or len(reason.split()) >= 4
