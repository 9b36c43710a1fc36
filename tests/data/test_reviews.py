"""The reviews written for the book: the files keep their promises, and the card tells the truth."""

from importlib.resources import files

import pandas as pd
import pytest

FOLDER = files("lrputils") / "assets" / "reviews"
COLUMNS = ["id", "text", "label", "phenomenon", "subject"]
SHAPES = {"short": (240, 6, 30), "long": (48, 120, 260)}  # rows, fewest and most words
REVIEWS = {kind: pd.read_csv(FOLDER / f"{kind}.csv") for kind in SHAPES}


def card():
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def card_table(section):
    """Rows of the tables under a heading, keyed by their first cell."""
    body = card().split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows[2:]}


@pytest.mark.parametrize("kind", SHAPES)
def test_files_have_the_promised_shape(kind):
    rows, (count, fewest, most) = REVIEWS[kind], SHAPES[kind]
    assert list(rows) == COLUMNS
    width = len(str(count))
    assert list(rows.id) == [f"{kind[0]}{i:0{width}d}" for i in range(1, count + 1)]
    assert rows.text.str.split().str.len().between(fewest, most).all()


@pytest.mark.parametrize(
    ("section", "column"), [("Phenomena", "phenomenon"), ("Subjects", "subject")]
)
def test_card_counts_match_the_files(section, column):
    counted = [pd.crosstab(rows[column], rows.label) for rows in REVIEWS.values()]
    counted = pd.concat(counted, axis=1).fillna(0).astype(int)
    printed = {value: [*map(int, cells[-4:])] for value, cells in card_table(section).items()}
    assert printed == {value: counts for value, *counts in counted.itertuples()}
