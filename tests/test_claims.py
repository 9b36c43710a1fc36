"""The page of claims: a row a claim, each with a place, a verdict and a reason."""

import csv
import re

import pytest

from lrputils.book.layout import find_book

BOOK = find_book()
TEXT = BOOK.chapter("claims").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if re.match(r"\| \d+[, \d]* \|", line)
]
with (BOOK.root / "results/claims.csv").open(encoding="utf-8") as file:
    OTHERS = [*csv.DictReader(file)]
VERDICTS = {"contradicts", "depends", "cannot tell", "not measured", "agrees", "same"}


def test_every_claim_has_its_row_once():
    numbers = [int(number) for row in ROWS for number in row[0].split(", ")]
    numbers += [int(row["number"]) for row in OTHERS]
    assert sorted(numbers) == list(range(1, 99))


def test_the_page_counts_its_claims():
    sections = re.split(r"^## ", TEXT, flags=re.M)
    rows = {part.split("\n")[0]: re.findall(r"^\| (\d[\d, ]*) \|", part, re.M) for part in sections}
    counts = {title: sum(row.count(",") + 1 for row in some) for title, some in rows.items()}
    said = re.search(
        r"Of (\d+) claims.* (\d+) agree.* (\d+) depend.* (\d+) are contradicted, "
        r"(\d+) cannot .* (\d+) were",
        TEXT.replace("\n", " "),
    )
    order = "It depends", "Contradicted", "Cannot be told", "Not measured"
    numbers = [len(OTHERS), *map(counts.get, order)]
    assert [*map(int, said.groups())] == [sum(numbers), *numbers]


def test_every_verdict_is_explained():
    assert {*re.findall(r"\*\*([a-z ]+)\*\*(?=.*\n:)", TEXT)} == VERDICTS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_is_complete_and_open(row):
    _, says, found, where = row
    assert all([says, found, where])
    verdicts = set(re.findall(r"\*\*([a-z ]+)\*\*", found))
    assert verdicts <= VERDICTS
    assert verdicts - {"agrees", "same"}
    _, unmeasured, reason = found.partition("**not measured**")
    assert not unmeasured or len(reason.split()) >= 4


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row["number"])
def test_the_other_rows_agree(row):
    assert all(row.values())
    assert re.search(r"\b(agrees|same)\b", row["found"])
    assert not re.search("contradicts|depends|cannot tell|not measured|[`{}]", row["found"])
