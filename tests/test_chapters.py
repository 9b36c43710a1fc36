"""The committed chapters: executed, clean, equal to their texts, and listed."""

import os
import re
import shutil
from collections import defaultdict

import jupytext.cli
import nbformat
import pytest

from lrputils.attribution import METHODS
from lrputils.book.layout import find_book
from lrputils.book.notebooks import read_text
from lrputils.book.parameters import declared
from lrputils.report.figures.style import LOOKS, looks
from tests.book.acceptance import legend_colours, problems, unread

BOOK = find_book()
CHAPTERS = BOOK.chapters().values()


def figures():
    """Yield the SVG of each figure of the executed chapters."""
    for chapter in CHAPTERS:
        for cell in nbformat.read(chapter.with_suffix(".ipynb"), 4).cells:
            for output in cell.get("outputs", []):
                if svg := output.get("data", {}).get("image/svg+xml"):
                    yield svg


def test_a_label_has_one_colour_in_all_legends_of_the_book():
    """That of the table, where it is a method's or a model's."""
    colours = defaultdict(set)
    for svg in figures():
        for label, own in legend_colours(svg):
            colours[label] |= own
    assert {label: own for label, own in colours.items() if len(own) > 1} == {}
    assert len(colours) > 5
    methods = {m.label for m in METHODS.values()}
    for label in {*methods, *LOOKS} & colours.keys():
        assert colours[label] == {looks([label])[label].colour.lower()}


@pytest.mark.parametrize("newer", [".md", ".ipynb"])
def test_twins_are_paired_and_in_a_fresh_clone_a_sync_changes_neither(newer, tmp_path, capsys):
    """Whichever a clone happens to write last."""
    shutil.copy(BOOK.root / "pyproject.toml", tmp_path)
    twins = []
    for chapter in CHAPTERS:
        for suffix in (".md", ".ipynb"):
            twin = shutil.copy(chapter.with_suffix(suffix), tmp_path)
            os.utime(twin, (0, 1_000 if suffix == newer else 500))
            twins.append(str(twin))
        jupytext.cli.jupytext(["--sync", str(twin)])
    said = capsys.readouterr().out.replace("Updating the timestamp of", "Unchanged")
    assert {*re.findall("Unchanged (.+)", said)} == {*twins}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.stem)
class TestChapter:
    def test_it_may_land(self, chapter):
        assert problems(chapter, chapter.with_suffix(".ipynb")) == []

    def test_every_parameter_is_read(self, chapter):
        notebook = read_text(chapter)
        assert unread(notebook) == []
        assert len(declared(notebook)) <= 10
        assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) <= 1

    def test_few_numbers_of_its_prose_are_only_on_the_built_page(self, chapter):
        """What a cell displays stands in the notebook, too; a placeholder is filled by a build."""
        assert chapter.read_text("utf-8").count("{glue:") <= 14

    def test_its_code_fits_the_page_and_what_it_defines_a_screen(self, chapter):
        cells = (c for c in read_text(chapter).cells if c.cell_type == "code")
        for lines in (cell.source.splitlines() for cell in cells):
            assert max(map(len, lines), default=0) <= 75
            defines = any(line.lstrip().startswith(("def ", "class ")) for line in lines)
            assert len(lines) <= 40 or not defines

    def test_what_has_a_caption_is_shown(self, chapter):
        cells = nbformat.read(chapter.with_suffix(".ipynb"), 4).cells
        captioned = [c for c in cells if "figure" in c.metadata.get("mystnb", {})]
        assert not [c.source for c in captioned if not c.outputs]

    def test_it_is_in_the_table_of_contents(self, chapter):
        toc = (BOOK.root / "_toc.yml").read_text(encoding="utf-8")
        listed = re.findall(r"^(?:root| +- file): (.+)$", toc, re.M)
        assert f"chapters/{chapter.stem}" in listed
