"""What executed chapters found of a reader's own model: the first page of a book about it.

A chapter's answer (`lrputils.report.display.Answer`) has a sentence about the reader's own run,
which is empty where it was given no model and no texts. What its tables and figures show is read
back here at full precision, and written as CSV.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from pathlib import Path

import nbformat
import pandas as pd
from nbformat import NotebookNode

from lrputils.report.display import ANSWER, TABLE
from lrputils.report.words import visible

_PAGE = """\
# Your results

What the chapters found with the model and the texts that the profile {profile} gives them. Each
line is computed in its chapter, where your run stands first in the tables and figures; all other
rows there were recorded on the book's own models.

{answers}

## The numbers

What each table and figure shows, at full precision, as CSV.

{tables}
"""


def read_answer(notebook: NotebookNode) -> str:
    """Return what an executed chapter answers for the reader's own model; "" if nothing."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if found := output.get("metadata", {}).get(ANSWER):
                return found["own"]
    return ""


def read_tables(notebook: NotebookNode) -> dict[str, pd.DataFrame]:
    """Return the values behind each captioned table and figure of an executed chapter, by its name.

    An index of several levels is one of texts again. What shows no values, as an image does, is
    left out.
    """
    found = {}
    for cell in notebook.cells:
        name = cell.metadata.get("mystnb", {}).get("figure", {}).get("name")
        for output in cell.get("outputs", ()):
            if name and (held := output.get("data", {}).get(TABLE)):
                found[name] = pd.DataFrame(held["columns"], index=_index(held["index"]))
    return found


def _index(labels: list[str]) -> pd.Index:
    with suppress(ValueError, SyntaxError):
        levels = [ast.literal_eval(label) for label in labels]
        if all(isinstance(level, tuple) for level in levels):
            return pd.MultiIndex.from_tuples(levels)
    return pd.Index(labels)


def write_tables(notebook: NotebookNode, folder: Path) -> list[Path]:
    """Write the values behind each captioned table and figure into `folder`, as NAME.csv."""
    paths = []
    for name, values in read_tables(notebook).items():
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{name}.csv")
        values.to_csv(paths[-1])
    return paths


def write_results_page(executed: Mapping[str, Path], target: Path, profile: str) -> Path | None:
    """Write `chapters/your_results.md` and the CSV files that it links to below `target`.

    None, and nothing is written, if no chapter has an answer: then this is the book as it is.

    Args:
        executed: notebooks by the chapter's name.
        target: the folder that Sphinx reads.
        profile: what the reader calls the parameters.
    """
    notebooks = {name: nbformat.read(path, 4) for name, path in executed.items()}
    answers = {name: read_answer(notebook) for name, notebook in notebooks.items()}
    answers = {name: text for name, text in answers.items() if text}
    if not answers:
        return None
    links = [
        f"- {{doc}}`{name}`: {{download}}`{path.stem} <../tables/{name}/{path.name}>`"
        for name in answers
        for path in write_tables(notebooks[name], target / "tables" / name)
    ]
    said = [f"- {{doc}}`{name}`: {escape(visible(text))}" for name, text in answers.items()]
    page = target / "chapters/your_results.md"
    given = {"answers": "\n".join(said), "tables": "\n".join(links)}
    text = _PAGE.format(profile=escape(visible(profile)), **given)
    page.write_text(text, encoding="utf-8")
    return page
