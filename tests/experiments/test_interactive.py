"""The figures that a reader changes, changed by keyboard in a browser, against Python's numbers."""

import json
from math import log2

import pytest

from experiments import interactive, products
from tests.book.browser import AXE, PHONE, WIDE

SAID = "document.querySelector('[role=status]').textContent"
TAB, DOWN, RIGHT, LEFT, SPACE = "Tab", "ArrowDown", "ArrowRight", "ArrowLeft", " "


@pytest.fixture
def page(tmp_path):
    def written(figure: interactive._Interactive) -> str:
        shown = figure._repr_mimebundle_()["text/html"]
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>A figure</title>'
        head += '<meta name="viewport" content="width=device-width">'
        path = tmp_path / f"{figure.kind}.html"
        head += "<style>main { font: 16px DejaVu Sans; margin: 8px }</style>"  # as wide as the book
        path.write_text(f"{head}<body><main><h1>A figure</h1>{shown}</main>", encoding="utf-8")
        return path.as_uri()

    return written


@pytest.fixture(scope="module")
def figures():
    made = [
        interactive.product([2, 3, 4]),
        interactive.removal(
            ["never", "a", "</script><b>dull"],
            [0, 1.5, 0.1, 1, -2, 0.25, -1, 0.5],
            {"LOO": [0.2, 1.5, -2], "Shapley values": [0, 1, 0]},
        ),
    ]
    return {figure.kind: figure for figure in made}


def seen(browser, url, script, keys) -> list:
    visit = browser.visit(url, script, keys=keys)
    assert not visit.errors
    return visit.answer


def number(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("k", [3, 4, 5])
def test_every_bracketing_gets_the_relevances_of_python(browser, page, k):
    values = [2, -3, 4, 5, 7]
    trees = products.bracketings(products.symbols(values[:k]))
    script = """[[...document.querySelectorAll("option:checked")].map((o) => o.text),
      [...document.querySelectorAll("tbody tr:not([hidden])")].map((row) =>
        [...row.querySelectorAll("td")].map((cell) => cell.textContent))]"""
    keys = [TAB, *[DOWN] * (k - 3), TAB, *[DOWN] * (len(trees) - 1)]
    answers = seen(browser, page(interactive.product(values)), script, keys)[-len(trees) :]
    for tree, ((count, name), rows) in zip(trees, answers, strict=True):
        assert (count, name) == (str(k), str(tree).replace("*", "·"))
        columns = [
            [log2(1 / share) for share in products.shares(tree).values()],
            products.relevance(tree).values(),
            products.leave_one_out(tree).values(),
            [tree.value / k] * k,  # Shapley values
        ]
        for cells, expected in zip(rows, zip(*columns, strict=True), strict=True):
            assert [*map(number, cells)] == pytest.approx([*map(float, expected)], abs=0.01)


def test_relevance_follows_a_slider(browser, page):
    answers = seen(browser, page(interactive.product([2, 3, 4])), SAID, [*[TAB] * 3, RIGHT, "Home"])
    assert "Relevance: x1 6, x2 6, x3 12." in answers[0]
    assert "= 36. Relevance: x1 9, x2 9, x3 18." in answers[-2]
    assert "= −60. Relevance: x1 −15, x2 −15, x3 −30." in answers[-1]
    keys = [*[TAB] * 4, *[LEFT] * 3]
    assert (
        "Relevance: x1 0, x2 0, x3 0."
        in seen(browser, page(interactive.product([2, 3])), SAID, keys)[-1]
    )


_CLEAN = """(async () => {
  const {violations} = await axe.run(document, {resultTypes: ["violations"]});
  const tall = (e) => e.getBoundingClientRect().height;
  const frame = document.querySelector(".lrp-interactive");
  const right = (e) => e.getBoundingClientRect().right;
  const inner = right(frame) - parseFloat(getComputedStyle(frame).paddingRight);
  return {axe: violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 99))}`),
    width: document.documentElement.scrollWidth, window: innerWidth,
    least: Math.min(...[...document.querySelectorAll("label")]
      .filter((label) => label.checkVisibility()).map(tall)),
    beyond: [...frame.querySelectorAll("*")].filter((e) => e.checkVisibility())
      .filter((e) => right(e) > inner).map((e) => e.outerHTML.slice(0, 99)),
    still: document.querySelector(".still").checkVisibility(),
    names: [...document.querySelectorAll("input, select")].filter((c) => !c.labels.length).length};
})()"""


def test_words_taken_away_by_hand_are_measured_beside_what_was_promised(browser, page, figures):
    answers = seen(browser, page(figures["removal"]), SAID, [TAB, SPACE, TAB, SPACE])
    strongest, two, every = (
        "“never a …”: the logit falls by −2.00. Added scores: LOO −2.00, Shapley values +0.00.",
        "“… a …”: the logit falls by +0.25. Added scores: LOO −1.80, Shapley values +0.00.",
        "“… … …”: the logit falls by +0.50. Added scores: LOO −0.30, Shapley values +1.00.",
    )
    assert answers[0] == strongest
    assert two in answers
    assert answers[-1] == every
    with pytest.raises(ValueError, match="2 words have 4 sets, not 3"):
        interactive.removal(["a", "b"], [0, 1, 2], {})


def test_it_says_what_its_bars_are(browser, page, figures):
    script = "document.querySelector('.result small').textContent"
    (said,) = seen(browser, page(figures["removal"]), script, ["Home"])[:1]
    assert "one scale, in logits" in said
    assert said.endswith("The longest bar possible is 2.")


_COVERED = """(() => {
  const box = (e) => e.getBoundingClientRect();
  const across = (a, b) => a.left < b.right && b.left < a.right;
  const meet = (a, b) => across(a, b) && a.top < b.bottom && b.top < a.bottom;
  const bars = [...document.querySelectorAll("svg rect")].map(box);
  return [...document.querySelectorAll("svg text")]
    .filter((label) => bars.some((bar) => meet(bar, box(label)))).map((label) => label.textContent);
})()"""


@pytest.mark.parametrize("sign", [1, -1])
def test_the_longest_bars_leave_names_and_numbers_free(browser, page, sign):
    promised = {"LOO": [4.2 * sign, 1.1 * sign], "Mask gradient": [5.3 * sign, 0]}
    figure = interactive.removal(["never", "dull"], [0, 1, 2, 5.3 * sign], promised)
    assert seen(browser, page(figure), _COVERED, []) == []


@pytest.mark.parametrize("kind", ["product", "removal"])
@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_it_reads_well(browser, page, figures, kind, size):
    script = f"{AXE};\n{_CLEAN}"
    visit = browser.visit(page(figures[kind]), script, size=size)
    assert not visit.errors
    assert all(url.startswith("file:") for url in visit.requests)
    answer = visit.answer
    assert answer["axe"] == []
    assert answer["width"] <= answer["window"]
    assert answer["beyond"] == []
    assert answer["least"] >= 44
    assert (answer["still"], answer["names"]) == (False, 0)


def test_a_notebook_that_makes_scripts_anew_shows_it(browser, page, figures):
    """As JupyterLab does: markup first, then each script as a new element in its place."""
    shown = json.dumps(figures["product"]._repr_mimebundle_()["text/html"]).replace("<", "\\u003c")
    script = f"""(() => {{
      document.querySelector("main").innerHTML = {shown};
      const before = document.querySelectorAll("main select").length;
      for (const script of document.querySelectorAll("main script")) {{
        const made = document.createElement("script");
        for (const {{name, value}} of script.attributes) made.setAttribute(name, value);
        made.textContent = script.textContent;
        script.replaceWith(made);
      }}
      return [before, document.querySelectorAll("main select").length, {SAID}];
    }})()"""
    visit = browser.visit(page(figures["removal"]), script)
    before, after, said = visit.answer
    assert (before, after) == (0, 2)
    assert "Relevance: x1 6, x2 6, x3 12." in said
    assert not visit.errors


def test_what_is_chosen_is_printed_without_its_controls(browser, page, figures):
    watch = """matchMedia("print").onchange = ({matches}) => { if (matches) window.seen =
      [".controls", "[role=status]", "svg"].map((s) => document.querySelector(s).checkVisibility());
    }; 0"""
    url = page(figures["product"])
    assert browser.visit(url, watch, printed="window.seen").answer == [False, True, True]


def test_without_a_script_a_sentence_says_where_the_still_figure_is(figures):
    for figure in figures.values():
        shown = figure._repr_mimebundle_()["text/html"]
        assert '<p class="still">With JavaScript, ' in shown
        assert "above show" in figure.still


def test_markup_in_a_text_stays_in_the_data(figures):
    shown = figures["removal"]._repr_mimebundle_()["text/html"]
    assert shown.count("</script>") == 2
    held = shown.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(held)["words"][2] == "</script><b>dull"
