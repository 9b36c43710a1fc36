"""The committed recordings: a reader without the package finds a number of the book in them."""

import re
from contextlib import redirect_stdout
from io import StringIO

import nbformat
import pyarrow.parquet as pq

from lrputils.book.layout import find_book
from lrputils.report.display import ANSWER

BOOK = find_book()
README = (BOOK.root / "results/README.md").read_text(encoding="utf-8")


def test_every_column_is_explained():
    explained = set(re.findall(r"`([\w-]+)`", README.split("## Columns")[1]))
    for path in BOOK.root.glob("results/*/*/rows.parquet"):
        assert set(pq.read_schema(path).names) <= explained, path


def test_a_number_is_computed_again_without_the_package(monkeypatch):
    monkeypatch.chdir(BOOK.root)
    with redirect_stdout(StringIO()) as said:
        exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], {})
    cells = nbformat.read(BOOK.chapter("05_layer_ablation").with_suffix(".ipynb"), 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    (answer,) = (o.data[ANSWER] for o in outputs if ANSWER in o.get("data", {}))
    assert said.getvalue().startswith(f"{answer['facts']['sum_mini']:+.4f} [0.05")
