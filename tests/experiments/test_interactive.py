"""The figures that a reader changes, changed by keyboard in a browser, against Python's numbers."""

import json
from math import log2

import pytest

import lrputils as lrp
from experiments import interactive, products
from lrputils.report.heatmap import Heatmap
from tests.book.browser import AXE, PHONE, WIDE

TEXTS = [
    "A film that is never dull.",
    "</script><script>window.opened = 1</script><b>Dull</b> & slow",
    "I would watch it again, gladly.",
]
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
def evaluation(classifier):
    methods = ["attnlrp", "cp-lrp"]
    return lrp.evaluate(classifier, TEXTS, methods, progress=False)


@pytest.fixture(scope="module")
def figures(classifier, evaluation):
    labels = {"loo": "LOO", "attnlrp": "AttnLRP", "cp-lrp": "CP-LRP"}
    rows = range(len(TEXTS))
    made = [
        interactive.product([2, 3, 4]),
        interactive.heatmaps(classifier, TEXTS, evaluation, labels, rows, first=["loo"]),
        interactive.removal(
            ["never", "a", "dull<"],
            [0, 1.5, 0.1, 1, -2, 0.25, -1, 0.5],
            {"LOO": [1.5, 0.1, -2], "Shapley values": [0, 1, 0]},
        ),
    ]
    return {figure.kind: figure for figure in made}


def seen(browser, url, script, keys) -> list:
    visit = browser.visit(url, script, keys=keys)
    assert not visit.errors
    return visit.answer


def number(text: str) -> float:
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("k", [3, 4])
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


_MAPS = """({said: document.querySelector("[role=status]").textContent,
  opened: window.opened ?? null,
  maps: [...document.querySelectorAll(".words")].map((row) =>
    [...row.children].map((w) => [w.textContent, Number(w.style.getPropertyValue("--s"))])),
  heads: [...document.querySelectorAll(".lrp-heatmap p > b")].map((b) => b.textContent)})"""


def shares(classifier, text, scores) -> list[tuple[str, float]]:
    shown = Heatmap.of(classifier, text, {"m": scores})
    sums = [float(scores[list(word.pieces)].sum()) for word in shown.words]
    largest = max(map(abs, sums))
    return [(word.text, share / largest) for word, share in zip(shown.words, sums, strict=True)]


def assert_shares(shown, expected) -> None:
    assert [word for word, _ in shown] == [word for word, _ in expected]
    assert [s for _, s in shown] == pytest.approx([s for _, s in expected], abs=0.00051)


def test_maps_of_a_chosen_text_are_stacked_with_their_r(
    browser, page, figures, classifier, evaluation
):
    keys = [TAB, DOWN, TAB, TAB, SPACE, TAB, SPACE]
    start, *_, last = seen(browser, page(figures["heatmaps"]), _MAPS, keys)
    assert start["heads"][1:] == ["LOO"]
    assert last["heads"][1:] == ["LOO", "AttnLRP", "CP-LRP"]
    assert last["opened"] is None
    r = evaluation.per_text("r").loc[1]
    expected = f"AttnLRP {r['attnlrp']:+.2f}, CP-LRP {r['cp-lrp']:+.2f}.".replace("-0", "−0")
    assert last["said"].endswith(expected)
    for shown, method in zip(last["maps"], ["loo", "attnlrp", "cp-lrp"], strict=True):
        assert_shares(shown, shares(classifier, TEXTS[1], evaluation.maps[method][1]))


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
    strongest, alone, both = (
        "“… a …”: the logit falls by +0.25. Added scores: LOO −0.50, Shapley values +0.00.",
        "“never a …”: the logit falls by −2.00. Added scores: LOO −2.00, Shapley values +0.00.",
        "“never … …”: the logit falls by −1.00. Added scores: LOO −1.90, Shapley values +1.00.",
    )
    assert answers[0] == strongest
    assert alone in answers
    assert answers[-1] == both
    with pytest.raises(ValueError, match="2 words have 4 sets, not 3"):
        interactive.removal(["a", "b"], [0, 1, 2], {})


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


@pytest.mark.parametrize("kind", ["product", "heatmaps", "removal"])
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
    shown = json.dumps(figures["heatmaps"]._repr_mimebundle_()["text/html"]).replace("<", "\\u003c")
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
    visit = browser.visit(page(figures["product"]), script)
    assert visit.answer == [0, 1, "Choose a map."]
    assert not visit.errors


def test_what_is_chosen_is_printed_without_its_controls(browser, page, figures):
    watch = """matchMedia("print").onchange = ({matches}) => { if (matches) window.seen =
      [".controls", "[role=status]", "svg"].map((s) => document.querySelector(s).checkVisibility());
    }; 0"""
    url = page(figures["product"])
    assert browser.visit(url, watch, printed="window.seen").answer == [False, True, True]
