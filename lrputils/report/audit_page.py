"""The audit's page: one HTML file that reads offline, in print, by keyboard and in the dark.

`lrputils/assets/audit.html` escapes what is filled in, but for tables, figures and heat maps, which
escape their own texts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from lrputils.data.streams import TextStream
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.report import audit_answers as answers
from lrputils.report.audit import LRP, Audited, call, label
from lrputils.report.audit_calibrated import calibrated
from lrputils.report.display import show
from lrputils.report.figures import layers as by_layer
from lrputils.report.figures.dots import dots
from lrputils.report.figures.style import Drawing
from lrputils.report.heatmap import Heatmap
from lrputils.report.leading import MARGIN
from lrputils.study.cost.forecasts import duration
from lrputils.study.evaluation import REFERENCE

_TEMPLATE = Path(__file__).parents[1] / "assets" / "audit.html"
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_ENDS = ["value", "low", "high"]


def worst(
    classifier: Classifier,
    texts: TextStream | Texts,
    run: Audited,
    verdict: answers.Verdict,
    count: int = 3,
) -> dict[str, Heatmap]:
    """Return the texts that the verdict's map misses most: caption → LOO and three methods.

    Args:
        classifier: the audited one.
        texts: those that were measured.
        run: their rows.
        verdict: of `audit_answers.verdict`.
        count: how many.
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
        found[caption] = Heatmap.of(classifier, wanted[text], maps, max_length=cut)
    return found


def readouts(verdict: answers.Verdict) -> Drawing:
    """Draw AttnLRP and CP-LRP at each read-out."""
    series = {
        name: verdict.table[[name, *ends]].set_axis(_ENDS, axis=1)
        for name, ends in verdict.table.attrs["intervals"].items()
        if name != "difference"
    }
    title = "How well do the two track LOO?"
    return dots({"": series}, title=title, xlabel="mean r with LOO", zero=0)


def prices(methods: pd.DataFrame) -> Drawing:
    """Draw what each method of `audit_answers.by_method` reaches, in the order of their cost."""
    rows = methods.drop(index=label(REFERENCE))
    names = [f"{name} ({passes:.3g})" for name, passes in rows.passes.items()]
    table = rows[["r", "low", "high"]].set_axis(_ENDS, axis=1).set_axis(names, axis=0)
    title = "What a method's forward passes (in brackets) buy"
    return dots({"": {"mean over texts": table}}, title=title, xlabel="mean r with LOO", zero=0)


def conventions(found: answers.Sensitivity) -> Drawing:
    """Draw the difference of the two methods, one convention changed at a time."""
    table = found.one[["difference", "difference low", "difference high"]].set_axis(_ENDS, axis=1)
    name, title = " − ".join(map(label, LRP)), "One convention changed at a time"
    return dots({"": {name: table}}, title=title, xlabel="difference of mean r", zero=0)


def bypassed(gains: Mapping[str, pd.DataFrame]) -> Drawing:
    """Draw what the bypass of one layer adds, a panel a read-out."""
    title = "CP-LRP's rule in one layer alone"
    return by_layer.by_layer(gains, zero=True, label="change of r", title=title)


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
        notes: `gates` and `forecast`, as `lrputils.report.audit` writes them.
    """
    verdict, gains = answers.verdict(run), answers.layers(run)
    found, changed = answers.compared(run, verdict.readout), answers.sensitivity(run)
    whole = notes["forecast"]
    seconds = {name: taken / whole["texts"] for name, taken in whole["seconds"].items()}
    methods = answers.by_method(found, seconds)
    gates = pd.DataFrame.from_dict(notes["gates"], orient="index")
    exact = {column: gates[column].map("{:.1e}".format) for column in ("off", "allowed")}
    checks = gates.assign(**exact, passed=gates.passed.map({True: "yes", False: "NO"}))
    maps = worst(classifier, texts, run, verdict)
    shown = {caption: _html(heatmap) for caption, heatmap in maps.items()}
    styles = dict.fromkeys(style for html in shown.values() for style in _STYLE.findall(html))
    loader = jinja2.FileSystemLoader(_TEMPLATE.parent)
    filled = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    filled.filters |= {"table": _table, "picture": _picture, "duration": duration}
    return filled.get_template(_TEMPLATE.name).render(
        facts=facts,
        sound=bool(gates.passed.all()),
        verdict=verdict,
        leads=answers.at_budgets(found),
        calls={label(name): call(name, verdict.readout) for name in answers.NAMES},
        calibrated=calibrated(run),
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
            "verdict": readouts(verdict),
            "methods": prices(methods),
            "layers": bypassed(gains),
            "conventions": conventions(changed),
        },
        tracks=answers.TRACKS,
        margin=MARGIN,
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
