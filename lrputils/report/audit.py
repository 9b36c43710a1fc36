"""`lrputils audit`: rows in a folder, as `lrputils evaluate` keeps them, and a page beside them.

The page is one HTML file that reads offline, in print, by keyboard and in the dark; chapter 10
draws the same figures. `lrputils/assets/audit.html` escapes what is filled in, but for tables,
figures and heat maps, which escape their own texts.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.ticker import NullLocator

from lrputils.attribution import METHODS
from lrputils.data.texts import Texts, TextStream
from lrputils.model.classifier import Classifier
from lrputils.report import audit_answers as answers
from lrputils.report import audit_plan
from lrputils.report.audit_plan import COMPARED, LRP, Audited, call, gates, label
from lrputils.report.display import show
from lrputils.report.figures.marks import dots, lines
from lrputils.report.figures.style import WIDTH, Drawing, new_figure, of_method
from lrputils.report.heatmap import Heatmap
from lrputils.runs import datasets, results
from lrputils.runs.estimates import estimate
from lrputils.runs.folders import write_json
from lrputils.runs.shards import rank
from lrputils.study.cost import duration
from lrputils.study.evaluation import REFERENCE

PAGE, NOTES = "audit.html", "audit.json"
_TEMPLATE = Path(__file__).parents[1] / "assets" / "audit.html"
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_ENDS = ["value", "low", "high"]


def audit(
    classifier: Classifier,
    texts: TextStream,
    out: str | Path,
    settings: datasets.Settings | None = None,
    *,
    whole: TextStream | None = None,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Path:
    """Audit a classifier on texts into `out`: rows, provenance, and the page `audit.html`.

    A killed run goes on by the same call; of a finished one the page alone is written again.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `stream_texts`' answer.
        out: the audit's folder.
        settings: see `audit_plan.settings`.
        whole: all texts, whose cost is forecast; `texts` if not given.
        command: what to call to get the same page.
        parameters: how the texts were chosen.
        quiet: no progress.

    Returns:
        The page; on other ranks than the first, which write none, the folder.

    Raises:
        ValueError, OSError: see `lrputils.runs.datasets.evaluate_dataset`.
    """
    settings, out = settings or audit_plan.settings(), Path(out)
    labels = [*map(label, (*LRP, *COMPARED))]
    options = {**(parameters or {}), "maps": labels}
    how = {"command": command, "parameters": options, "quiet": quiet}
    how["variants"] = audit_plan.measured(classifier)
    datasets.evaluate_dataset(classifier, texts, out, settings, **how)
    if rank():
        return out
    facts = results.facts(out)
    notes = _notes(classifier, texts, whole or texts, settings, facts, out / NOTES, quiet)
    run = Audited(pd.read_parquet(out / results.ROWS), settings.units)
    html = page(classifier, texts, run, facts, notes)
    (out / PAGE).write_text(html, encoding="utf-8")
    return out / PAGE


def _notes(
    classifier: Classifier,
    texts: TextStream,
    whole: TextStream,
    settings: datasets.Settings,
    facts: Mapping[str, Any],
    path: Path,
    quiet: bool,
) -> dict[str, Any]:
    """What is measured once beside the rows, or was: the gates, and the forecast."""
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["rows"] == facts["rows"]:
            return known
    if not quiet:
        print("checking the rules, timing the methods …", file=sys.stderr)
    few = next(texts.parts(2))
    notes = {
        "rows": facts["rows"],
        "gates": gates(classifier, few, settings.max_length).to_dict("index"),
        "forecast": asdict(estimate(classifier, whole, settings, audit_plan.measured(classifier))),
    }
    write_json(path, notes)
    return notes


def worst(
    classifier: Classifier,
    texts: TextStream | Texts,
    run: Audited,
    verdict: answers.Verdict,
    count: int = 3,
    target: int | str | None = None,
) -> dict[str, Heatmap]:
    """Return the texts that the verdict's map misses most: caption → LOO and three methods.

    Args:
        classifier: the audited one.
        texts: those that were measured.
        run: their rows.
        verdict: of `audit_answers.verdict`.
        count: how many.
        target: the class explained, if not the predicted one.
    """
    place = verdict.readout
    found = run.per_text(answers.R, [verdict.method], place)[verdict.method]
    lowest = found.round(6).nsmallest(count)  # of r that float32 cannot tell apart, the first
    parts = texts.parts(256) if isinstance(texts, TextStream) else [texts]
    wanted = dict(enumerate(text for part in parts for text in part))
    rows = run.rows[run.rows.family == ""].set_index(["position", "method", "readout"])
    shown = {REFERENCE: "word", **dict.fromkeys(LRP, place), "mask-gradient": "word"}
    exact = run.rows[run.rows.method == REFERENCE].set_index("position")
    largest = exact.apply(lambda row: abs(row.scores[row.content]).max(), axis=1)
    usual, found = f"on the median text {largest.median():.2g}", {}
    for text, r in lowest.items():
        own = {name: rows.loc[(text, name, at)] for name, at in shown.items()}
        told = {n: "" if n == REFERENCE else f" (r {row[answers.R]:.2f})" for n, row in own.items()}
        maps = {label(name) + told[name]: row.scores for name, row in own.items()}
        which = f"Text {text + 1}, id {own[REFERENCE].id}"
        caption = f"{which}: {label(verdict.method)} has r {r:.2f}; "
        caption += f"LOO's largest score is {largest[text]:.2g}, {usual}"
        cut = int(own[REFERENCE].tokens) if own[REFERENCE].cut else None
        found[caption] = Heatmap.of(
            classifier, wanted[text], maps, target=target, units=run.units, max_length=cut
        )
    return found


def readouts(verdicts: Mapping[str, answers.Verdict]) -> Drawing:
    """Draw AttnLRP and CP-LRP at each read-out, a panel a run, and the bound between yes and no."""
    panels = {
        name: {
            method: verdict.table[[method, *ends]].set_axis(_ENDS, axis=1)
            for method, ends in verdict.table.attrs["intervals"].items()
            if method != "difference"
        }
        for name, verdict in verdicts.items()
    }
    bound = {"lines": dict.fromkeys(panels, answers.TRACKS), "line": f"{answers.TRACKS:.2f}"}
    title = f"Is the mean r with LOO above {answers.TRACKS:.2f}?"
    return dots(panels, title=title, xlabel="mean r with LOO", **bound)


def prices(methods: pd.DataFrame) -> Drawing:
    """Draw each method of `audit_answers.by_method`: its forward passes, and beside them its r."""
    rows = methods.iloc[::-1]
    title, size = "What a method's forward passes buy", {"columns": 2, "sharey": True}
    ratios = {"width_ratios": [2, 3]}
    figure, (left, right) = new_figure(WIDTH, 1.2 + 0.27 * len(rows), title=title, **size, **ratios)
    for place, (name, row) in enumerate(rows.iterrows()):
        colour = of_method(next(m for m in METHODS if name.startswith(METHODS[m].label)))
        left.hlines(place, 1, row.passes, color=colour, lw=2)
        left.plot(row.passes, place, "o", color=colour, ms=5)
        right.hlines(place, row.low, row.high, color=colour, lw=2)
        right.plot(row.r, place, "o", color=colour, ms=5)
    left.set_xscale("log")
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300) if tick <= rows.passes.max()]
    left.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    left.xaxis.set_minor_locator(NullLocator())
    left.set_yticks(range(len(rows)), rows.index)
    left.set_xlabel("forward passes")
    right.set_xlabel("mean r with LOO")
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
    return figure


def conventions(found: answers.Sensitivity) -> Drawing:
    """Draw the difference of the two methods, one convention changed at a time."""
    table = found.one[["difference", "difference low", "difference high"]].set_axis(_ENDS, axis=1)
    name, title = " − ".join(map(label, LRP)), "One convention changed at a time"
    return dots({"": {name: table}}, title=title, xlabel="difference of mean r", zero=0)


def bypassed(gains: Mapping[str, pd.DataFrame]) -> Drawing:
    """Draw what the bypass of one layer adds, a panel a read-out."""
    title = "CP-LRP's rule in one layer alone"
    return lines(gains, xlabel="layer", ylabel="change of r", title=title, zero=True)


def forecast(notes: Mapping[str, Any]) -> pd.DataFrame:
    """Return what each method takes for the whole file, a row each, from an audit's notes."""
    texts, seconds = notes["forecast"]["texts"], notes["forecast"]["seconds"]
    rows = {
        label(name): {"the whole file": duration(seconds[name]), "seconds a text": each}
        for name in answers.NAMES
        if (each := seconds.get(name, 0) / texts)
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def page(
    classifier: Classifier,
    texts: TextStream,
    run: Audited,
    facts: Mapping[str, Any],
    notes: Mapping[str, Any],
) -> str:
    """Return the page of an audit as HTML.

    Args:
        classifier: the audited one.
        texts: those it read.
        run: the rows.
        facts: their provenance.
        notes: `gates` and `forecast`, as `audit` writes them.
    """
    verdict, gains = answers.verdict(run), answers.layers(run)
    found, changed = answers.compared(run, verdict.readout), answers.sensitivity(run)
    whole = notes["forecast"]
    seconds = {name: taken / whole["texts"] for name, taken in whole["seconds"].items()}
    methods = answers.by_method(found, seconds)
    gates = pd.DataFrame.from_dict(notes["gates"], orient="index")
    exact = {column: gates[column].map("{:.1e}".format) for column in ("off", "allowed")}
    checks = gates.assign(**exact, passed=gates.passed.map({True: "yes", False: "NO"}))
    target = facts["parameters"].get("target")
    maps = worst(classifier, texts, run, verdict, target=target)
    shown = {caption: _html(heatmap) for caption, heatmap in maps.items()}
    styles = dict.fromkeys(style for html in shown.values() for style in _STYLE.findall(html))
    loader = jinja2.FileSystemLoader(_TEMPLATE.parent)
    filled = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    filled.filters |= {"table": _table, "picture": _picture, "duration": duration}
    return filled.get_template(_TEMPLATE.name).render(
        facts=facts,
        unit=run.units,
        sound=bool(gates.passed.all()),
        verdict=verdict,
        leads=answers.at_budgets(found),
        calls={label(name): call(name, verdict.readout, run.units) for name in answers.NAMES},
        calibrated=answers.calibrated(run),
        gains=gains,
        in_layers=answers.in_layers(gains),
        sensitivity=changed,
        whole=whole,
        styles=Markup("\n".join(styles)),
        heatmaps={caption: Markup(_STYLE.sub("", html)) for caption, html in shown.items()},
        tables={
            "verdict": verdict.table,
            "methods": methods,
            "checks": checks,
            "layers": pd.concat(gains)[_ENDS],
            "conventions": changed.one,
            "forecast": forecast(notes),
        },
        figures={
            "verdict": readouts({"": verdict}),
            "methods": prices(methods),
            "layers": bypassed(gains),
            "conventions": conventions(changed),
        },
        tracks=answers.TRACKS,
        margin=answers.MARGIN,
        loo=REFERENCE,
    )


def _html(shown: Any) -> str:
    return shown._repr_mimebundle_()["text/html"]


def _table(frame: pd.DataFrame, caption: str) -> Markup:
    """A table with a caption and the scope of its headings; a wide one scrolls by itself."""
    ends = {"value": ("low", "high")} if "value" in frame else None
    head, body = _html(show(frame, intervals=ends)).split("</thead>")
    head = re.sub(r"(<table[^>]*>)", rf"\1<caption>{escape(caption)}</caption>", head, count=1)
    head = head.replace("<th></th>", "<td></td>").replace("<th>", '<th scope="col">')
    body = re.sub("<th(?=[ >])", '<th scope="row"', body)
    region = f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(caption)}">'
    return Markup(f"{region}{head}</thead>{body}</div>")


def _picture(figure: Drawing, alt: str) -> Markup:
    data = base64.b64encode(figure.svg().encode()).decode()
    source = f"data:image/svg+xml;base64,{data}"
    return Markup(f'<figure><img src="{source}" alt="{escape(alt)}"></figure>')
