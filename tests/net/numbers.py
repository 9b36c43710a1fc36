"""The table of headline values, and what a committed notebook shows of each: no `lrputils`."""

from __future__ import annotations

import csv
import json
from ast import literal_eval
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tests.net import recompute

HERE = Path(__file__).resolve().parent
CHAPTERS = HERE.parents[1] / "chapters"
GLUED = "application/papermill.record/text/plain"
ANSWER = "application/vnd.lrputils.answer+json"
TABLE = "application/vnd.lrputils.table+json"


class Headline(NamedTuple):
    """A row of `numbers.csv`.

    `shown` is a name that the chapter's notebook binds, or "row | column" of one of its tables: of
    a value that no chapter shows, neither code nor rows could go wrong here. `computed` is a
    function of `recompute` and its arguments; "" for a value that does not come from `results/`.
    """

    chapter: str
    shown: str
    value: float
    low: float | None
    high: float | None
    n: int | None
    computed: str


class Found(NamedTuple):
    """A value with the ends of its interval and its number of texts, where there are any."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


def headlines() -> list[Headline]:
    with (HERE / "numbers.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Headline(
            row["chapter"],
            row["shown"],
            float(row["value"]),
            *(float(row[end]) if row[end] else None for end in ("low", "high")),
            int(row["n"]) if row["n"] else None,
            row["computed"],
        )
        for row in rows
    ]


def in_notebook(chapter: str, shown: str) -> list[Found]:
    """Return every place of a notebook that shows it; a row and column may be in several tables."""
    if " | " not in shown:
        glued = _glued(chapter)
        ends = [glued.get(f"{shown}_{end}") for end in ("low", "high")]
        return [Found(glued[shown], *ends)] if shown in glued else []
    row, column = shown.rsplit(" | ", 1)
    found = []
    for table in _tables(chapter):
        if row in table["index"] and column in table["columns"]:
            at = table["index"].index(row)
            cells = {name: values[at] for name, values in table["columns"].items()}
            ends = [cells.get(f"{column} {end}", cells.get(end)) for end in ("low", "high")]
            found.append(Found(cells[column], *ends))
    return found


def recomputed(how: str) -> Found:
    """Return what a function of `recompute`, named with its arguments, finds.

    Of two, "… - …", it is the difference by text.
    """
    calls = [call.split() for call in how.split(" - ")]
    found, *other = (getattr(recompute, name)(*arguments) for name, *arguments in calls)
    if other:
        return Found(*recompute.estimate(found - other[0], paired=True))
    if isinstance(found, pd.Series):
        found = (found,)
    if isinstance(found, tuple):
        if isinstance(found[0], pd.Series):
            found = recompute.estimate(*found)
        return Found(*found)
    return Found(float(found))


@cache
def _outputs(chapter: str) -> list[dict]:
    cells = json.loads((CHAPTERS / f"{chapter}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells for output in cell.get("outputs", [])]


@cache
def _glued(chapter: str) -> dict:
    bound = [output for output in _outputs(chapter) if "scrapbook" in output.get("metadata", {})]
    found = {
        output["metadata"]["scrapbook"]["name"]: _number(output["data"][GLUED]) for output in bound
    }
    for output in _outputs(chapter):  # an answer's facts
        found |= output.get("data", {}).get(ANSWER, {}).get("facts", {})
    return found


def _number(text: str | list[str]) -> float | str:
    value = literal_eval("".join(text))
    try:
        return float(value)
    except ValueError:
        return value


@cache
def _tables(chapter: str) -> list[dict]:
    found = (output.get("data", {}).get(TABLE) for output in _outputs(chapter))
    return [table for table in found if table]
