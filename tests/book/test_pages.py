"""The built pages, from the committed chapters: they build without a warning and read offline."""

import re
from pathlib import Path

import nbformat
import pytest
import yaml

from lrputils.book.build import assemble, build_html
from lrputils.book.layout import BookError, find_book
from tests.book.browser import PHONE, WIDE, unreadable

BOOK = find_book()
REPOSITORY = "https://github.com/someone/fork"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of the pages, built as `make book` builds them but from the committed twins."""
    folder = tmp_path_factory.mktemp("site")
    executed = {name: text.with_suffix(".ipynb") for name, text in BOOK.chapters().items()}
    assemble(BOOK, executed, folder / "source", repository=REPOSITORY)
    return build_html(folder / "source", folder).parent


def pages(site: Path) -> list[Path]:
    chapters = sorted((site / "chapters").glob("*.html"))
    assert len(chapters) > len(BOOK.chapters())
    return [*chapters, site / "search.html"]


def test_the_front_page_leads_to_the_introduction(site):
    assert "url=chapters/intro.html" in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=\"(https?:)?//|<link[^>]*href=\"https?:")
    for page in pages(site):
        found = [m.group() for m in loads.finditer(page.read_text(encoding="utf-8"))]
        assert not [tag for tag in found if 'rel="canonical"' not in tag], page.name


def test_bars_over_parameters_and_imports_say_so(site):
    page = (site / "chapters/03_sst.html").read_text(encoding="utf-8")
    bars = re.findall(r'<p class="collapsed admonition-title">([^<]*)', page)
    assert bars[:3] == ["Parameters of this page", "Imports", "How the rows are read"]
    assert bars.count("Imports") == 1
    assert {"Code of the figure", "Code of the table"} & {*bars}


@pytest.mark.parametrize("chapter", BOOK.chapters())
def test_edit_leads_to_the_text(site, chapter):
    page = (site / f"chapters/{chapter}.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}/edit/main/chapters/{chapter}.md"' in page


def test_without_a_repository_no_button_leads_to_one_and_another_profile_is_named(tmp_path):
    executed = {name: text.with_suffix(".ipynb") for name, text in BOOK.chapters().items()}
    assemble(BOOK, executed, tmp_path, profile="smoke")
    settings = yaml.safe_load((tmp_path / "_config.yml").read_text())
    assert not {"repository", "launch_buttons"} & settings.keys()
    assert not {key for key, value in settings["html"].items() if key.startswith("use_") and value}
    assert "smoke" in settings["html"]["announcement"]


def test_a_missing_page_is_named(tmp_path):
    executed = dict.fromkeys(BOOK.chapters(), tmp_path / "nowhere.ipynb")
    with pytest.raises(BookError, match=r"_toc.yml lists chapters/intro, but there is no"):
        assemble(BOOK, executed, tmp_path / "source")


def test_pages_read_well_offline(site, browser):
    looks = (WIDE, False), (PHONE, True)
    found = {p.name: unreadable(browser, p.as_uri(), *looks) for p in pages(site)}
    assert {name: lost for name, lost in found.items() if lost} == {}


def test_a_dark_page_is_printed_dark_on_light(site, browser):
    watch = """addEventListener("beforeprint", () => { window.onPaper = {
      theme: document.documentElement.dataset.theme,
      ink: getComputedStyle(document.body).color,
      colours: getComputedStyle(document.querySelector(".lrp-heatmap .words span"))
        .printColorAdjust,
    }; }); 0"""
    ask = "({...window.onPaper, after: document.documentElement.dataset.theme})"
    page = (site / "chapters/03_sst.html").as_uri()
    seen = browser.visit(page, watch, dark=True, printed=ask).answer
    assert (seen["theme"], seen["after"]) == ("light", "dark")
    assert seen["colours"] == "exact"
    assert max(map(int, re.findall(r"\d+", seen["ink"])[:3])) < 100


@pytest.mark.parametrize("chapter", ["01_scalar_product", "03_sst"])
def test_the_figures_that_a_reader_changes_work(site, browser, chapter):
    script = """[...document.querySelectorAll(".lrp-interactive")].map((figure) =>
      [figure.className, figure.querySelector("[role=status]").textContent.length > 20])"""
    page = (site / f"chapters/{chapter}.html").as_uri()
    seen = browser.visit(page, script).answer
    assert seen
    assert all(figure == ["lrp-interactive ready", True] for figure in seen)


# The texts of each table by row and column; a cell that spans several stands in each.
_GRIDS = """() => [...document.querySelectorAll("table")].map((table) => {
  const grid = [...table.rows].map(() => []);
  [...table.rows].forEach((row, y) => {
    for (const cell of row.cells) {
      let x = 0;
      while (grid[y][x] !== undefined) x++;
      for (let i = 0; i < cell.rowSpan; i++)
        for (let j = 0; j < cell.colSpan; j++) grid[y + i][x + j] = cell.innerText.trim();
    }
  });
  return grid;
})"""


def test_the_page_s_script_leaves_the_cells_of_each_table_as_they_were(browser, tmp_path):
    """Of all committed chapters; what `show` writes into them is tried in `test_display`."""
    cells = [
        c for p in BOOK.chapters().values() for c in nbformat.read(p.with_suffix(".ipynb"), 4).cells
    ]
    data = [o.get("data", {}) for cell in cells for o in cell.get("outputs", [])]
    tables = [some["text/html"] for some in data if "<table" in some.get("text/html", "")]
    script = (BOOK.root / "_static/book.js").read_text()
    html = "".join(tables).replace("<details>", "<details open>")
    page = tmp_path / "tables.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8>{html}"
        f"<script>const grids = {_GRIDS}; const before = grids();\n{script}</script>"
    )
    before, after = browser.visit(page.as_uri(), "[before, grids()]").answer
    assert len(after) == len(tables) > 40
    assert before == after


NARROW = (250, 700)  # narrower than the phones on which these pages' tables fit


@pytest.mark.parametrize("chapter", ["04_imdb", "10_audit"])
def test_a_table_that_goes_on_says_so_and_keeps_the_names_of_its_rows(site, browser, chapter):
    script = """(async () => {
      const seen = [];
      for (const table of document.querySelectorAll(".cell_output .lrp-table")) {
        const box = table.closest(".output");
        const left = (e) => Math.round(e.getBoundingClientRect().left);
        const said = () => box.previousElementSibling?.textContent === "scroll →" &&
          box.previousElementSibling.checkVisibility({visibilityProperty: true});
        const before = said();
        box.scrollLeft = box.scrollWidth;
        await new Promise((done) => setTimeout(done, 100));
        const names = [...table.tBodies[0].rows].map((row) => row.querySelectorAll("th"));
        seen.push([box.scrollWidth > box.clientWidth, before, said(),
          names.every((each) => left([...each].at(-1)) >= left(box) - 1)]);
      }
      return seen;
    })()"""
    page = (site / f"chapters/{chapter}.html").as_uri()
    narrow = browser.visit(page, script, size=NARROW).answer
    assert [True, True, False, True] in narrow
    for seen in (narrow, browser.visit(page, script, size=WIDE).answer):
        assert all(before == wide and not after for wide, before, after, _ in seen)
        assert all(kept for wide, *_, kept in seen if wide)
    ask = "[...document.querySelectorAll('.goes-on')].map((hint) => hint.checkVisibility())"
    watch = f"""matchMedia("print").onchange = ({{matches}}) => {{
      if (matches) window.seen = {ask}; }}; 0"""
    assert not any(browser.visit(page, watch, size=NARROW, printed="window.seen").answer)


def test_search_finds_what_the_pages_say(site, browser):
    script = """(async () => {
      for (let i = 0; i < 50; i++) {
        const found = document.querySelectorAll("#search-results li").length;
        if (found) return found;
        await new Promise((done) => setTimeout(done, 100));
      }
      return 0;
    })()"""
    address = f"{(site / 'search.html').as_uri()}?q=relevance"
    assert browser.visit(address, script).answer >= 2


def test_a_warning_of_sphinx_fails_the_build(site):
    """Last: it builds these pages again, of which one has changed."""
    source = site.parents[1] / "source"
    page = source / "chapters/bibliography.md"
    text = page.read_text()
    try:
        page.write_text(f"{text}\n{{doc}}`not-there`\n")
        with pytest.raises(BookError, match="unknown document"):
            build_html(source, source.parent)
    finally:
        page.write_text(text)
