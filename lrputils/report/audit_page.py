"""The audit's page: one HTML file that reads offline, in print, by keyboard and in the dark.

The wording of the answers is here, so that page, chapter and command line say the same. What is
filled into `lrputils/assets/audit.html` is escaped there, but for tables, figures and heat maps,
which escape their own texts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape

from lrputils import stats
from lrputils.data.streams import TextStream
from lrputils.model.classifier import Classifier
from lrputils.report import audit_answers as answers
from lrputils.report.audit import COMPARED, LRP, Audited, Settings, label
from lrputils.report.display import show
from lrputils.report.figures import forms
from lrputils.report.figures import layers as draw_layers
from lrputils.report.heatmap import Heatmap
from lrputils.report.tables import CANNOT_TELL
from lrputils.study.cost.forecasts import duration
from lrputils.study.evaluation import REFERENCE

_TEMPLATE = Path(__file__).parents[1] / "assets" / "audit.html"
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def interval(found: stats.Estimate) -> str:
    """Write an estimate as "0.74 [0.70, 0.78]"."""
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def count(texts: float) -> str:
    """Write how many texts are needed, in two digits: an estimate of an estimate."""
    if not texts < 1e6:
        return "more than a million"
    digits = max(0, int(np.log10(texts)) - 1)
    return f"{int(np.ceil(texts / 10**digits) * 10**digits):,}"


def judged(verdict: answers.Verdict) -> str:
    """Say what the verdict is, in a sentence or two."""
    half = f"{answers.TRACKS:.2f}, where a map explains half of LOO's variance"
    said = {
        "yes": f"The interval lies above {half}.",
        "no": f"The interval lies below {half}.",
        CANNOT_TELL: f"That does not settle whether it is above {half}: about "
        f"{count(verdict.texts)} texts would.",
    }[verdict.answer]
    said = f"{verdict.best} comes closest to LOO: mean r {interval(verdict.r)}. {said}"
    return f"{said} On {verdict.below:.0%} of the texts it stays below."


def ordered(verdict: answers.Verdict) -> str:
    """Say which of AttnLRP and CP-LRP is ahead at each read-out."""
    first, second = (label(method) for method in LRP)
    ahead: dict[str, list[str]] = {}
    for place, row in verdict.table.iterrows():
        low, high = row["difference low"], row["difference high"]
        few = verdict.r.used < answers.FEWEST
        told = "" if few or low <= 0 <= high else first if low > 0 else second
        ahead.setdefault(told, []).append(str(place))
    parts = [f"{name} is ahead at {', '.join(places)}" for name, places in ahead.items() if name]
    if "" in ahead:
        parts.append(f"neither is at {', '.join(ahead[''])}")
    return f"Of the two, {'; '.join(parts)}."


def advised(lead: answers.Lead) -> str:
    """Say which method to use among those that a budget allows."""
    if not lead.rival:
        return f"{lead.best}: nothing else costs as little."
    gap = f"{lead.difference.value:+.3f} [{lead.difference.low:.3f}, {lead.difference.high:.3f}]"
    return {
        answers.CLEAR: f"Use {lead.best}. It is ahead of all others; of {lead.rival} by {gap}.",
        answers.ALIKE: f"Use {lead.best}, or {lead.rival}: within {answers.MARGIN} ({gap}).",
        CANNOT_TELL: f"Cannot tell {lead.best} from {lead.rival} ({gap}): n too small, about "
        f"{count(lead.texts)} texts needed.",
    }[lead.outcome]


def budgets(leads: Mapping[float, answers.Lead]) -> pd.DataFrame:
    """Return the table of `audit_answers.at_budgets`: method, r with interval, and the advice."""
    rows = {
        f"{passes:g} passes": {"best": x.best, "r": x.r.value, "low": x.r.low, "high": x.r.high}
        | {"advice": advised(x)}
        for passes, x in leads.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.attrs["intervals"] = {"r": ("low", "high")}
    return table


def in_layers(gains: Mapping[str, pd.DataFrame]) -> str:
    """Say in which layers the bypass raises and lowers r, at each read-out."""
    parts = []
    for place, table in gains.items():
        up, down = table.index[table.low > 0], table.index[table.high < 0]
        told = [
            f"{verb} it in layer{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
            for verb, some in (("raises", up), ("lowers", down))
            if len(some)
        ]
        parts.append(f"{place}: {' and '.join(told) or 'changes it clearly in no layer'}")
    return "; ".join(parts)


def depends(found: answers.Sensitivity) -> str:
    """Say how often the order of the two methods holds over all conventions."""
    first, second = (label(method) for method in LRP)
    shares = found.outcome
    said = (
        f"Over {found.count} combinations of these choices {first} is ahead in "
        f"{shares['above']:.0%}, {second} in {shares['below']:.0%}; the rest is undecided."
    )
    if found.reversals.empty:
        return f"{said} No single choice reverses the order."
    flips = ", ".join(found.reversals.sort_values(ascending=False).index)
    return f"{said} What can reverse the order by itself: {flips}."


def heatmaps(
    classifier: Classifier,
    texts: TextStream | Any,
    run: Audited,
    verdict: answers.Verdict,
    *,
    max_length: int | None = None,
) -> dict[str, Heatmap]:
    """Return the texts that the verdict's map misses most: caption → LOO and three methods."""
    method = next(name for name in LRP if label(name, verdict.readout) == verdict.best)
    lowest = answers.worst(run, method, verdict.readout)
    shown = [(REFERENCE, ""), *((name, verdict.readout) for name in LRP), ("mask-gradient", "")]
    wanted, found = set(lowest.index), {}
    parts = texts.parts(256) if isinstance(texts, TextStream) else [texts]
    for place, text in enumerate(text for part in parts for text in part):
        if place in wanted:
            found[place] = text
        if len(found) == len(wanted):
            break
    rows = run.rows[run.rows.family == ""].set_index("position")
    made = {}
    for place, r in lowest.items():
        own, maps = rows.loc[place], {}
        for name, at in shown:
            row = own[(own.method == name) & (own.readout == (at or own.readout))].iloc[0]
            told = "" if name == REFERENCE else f" (r {row[answers.R]:.2f})"
            maps[label(name, at) + told] = row.scores
        caption = f"Text {own.id.iloc[0]}: {verdict.best} has r {r:.2f}"
        cut = max_length if own.cut.iloc[0] else None
        made[caption] = Heatmap.of(classifier, found[place], maps, max_length=cut)
    return made


def figures(verdict: answers.Verdict, methods: pd.DataFrame, gains: Any, changed: Any) -> dict:
    """Return the page's figures, by the name of the part that they stand in, with alt texts."""
    ends = ["value", "low", "high"]
    series = {
        name: verdict.table[[name, *pair]].set_axis(ends, axis=1)
        for name, pair in verdict.table.attrs["intervals"].items()
        if name != "difference"
    }
    priced = methods.drop(index=label(REFERENCE))[["r", "low", "high"]].set_axis(ends, axis=1)
    costs = methods.passes[priced.index]
    priced.index = [f"{name} ({passes:.3g})" for name, passes in costs.items()]
    gap = changed.one[["difference", "difference low", "difference high"]].set_axis(ends, axis=1)
    axis = {"label": "mean r with LOO"}
    difference = " − ".join(map(label, LRP))
    titles = ("AttnLRP and CP-LRP by read-out", "What forward passes buy (passes a text)")
    titles += ("CP-LRP's rule in one layer alone", "One convention changed at a time")
    by_layer = {"zero": True, "label": "change of r", "title": titles[2]}
    one = {"label": difference, "title": titles[3]}
    return {
        "verdict": (
            forms.by_row({"": series}, title=titles[0], **axis),
            "Mean r with LOO of AttnLRP and CP-LRP at each read-out, with intervals",
        ),
        "methods": (
            forms.by_row({"": {"all texts": priced}}, title=titles[1], **axis),
            "Mean r with LOO of every method, ordered by its cost in forward passes",
        ),
        "layers": (
            draw_layers.by_layer(gains, **by_layer),
            "Change of r with LOO by layer, a panel a read-out",
        ),
        "conventions": (
            forms.by_row({"": {difference: gap}}, **one),
            f"{difference} in mean r, a row a changed convention, with intervals",
        ),
    }


def page(
    classifier: Classifier,
    texts: TextStream,
    run: Audited,
    facts: Mapping[str, Any],
    notes: Mapping[str, Any],
    settings: Settings,
) -> str:
    """Return the page of an audit as HTML.

    Args:
        classifier: the audited one.
        texts: those it read.
        run: the rows.
        facts: their provenance.
        notes: `gates` and `forecast`, as `lrputils.report.audit` writes them.
        settings: how the texts were cut.
    """
    verdict, gains = answers.verdict(run), answers.layers(run)
    changed, forecast = answers.sensitivity(run), notes["forecast"]
    per_text = {name: s / forecast["texts"] for name, s in forecast["seconds"].items()}
    methods, leads = answers.by_method(run, per_text), answers.at_budgets(run)
    gates = pd.DataFrame.from_dict(notes["gates"], orient="index")
    drawn = figures(verdict, methods, gains, changed)
    maps = heatmaps(classifier, texts, run, verdict, max_length=settings.max_length)
    shown = {caption: _html(heatmap) for caption, heatmap in maps.items()}
    styles = dict.fromkeys(style for html in shown.values() for style in _STYLE.findall(html))
    return (
        _environment()
        .get_template(_TEMPLATE.name)
        .render(
            model=facts["model"]["name"],
            data=facts["data"]["name"],
            count=facts["data"]["texts"],
            sound=bool(gates.passed.all()),
            verdict=verdict,
            judged=judged(verdict),
            ordered=ordered(verdict),
            tracks=f"{answers.TRACKS:.2f}",
            figures={name: (_picture(figure), alt) for name, (figure, alt) in drawn.items()},
            styles=Markup("\n".join(styles)),
            heatmaps={caption: Markup(_STYLE.sub("", html)) for caption, html in shown.items()},
            gates=_table(gates.assign(**_checked(gates)), "The checks, on two of the texts"),
            verdict_table=_table(verdict.table, "Mean r with LOO at each read-out"),
            budget_table=_table(budgets(leads), "The best method at each budget", digits=2),
            method_table=_table(methods, "Every method, by cost"),
            layers=in_layers(gains),
            layer_table=_table(pd.concat(gains)[["value", "low", "high"]], "By layer"),
            depends=depends(changed),
            convention_table=_table(changed.one, "One convention changed at a time"),
            forecast=_table(_forecast(forecast), "The whole file on this device"),
            whole=f"{forecast['texts']:,} texts and {forecast['tokens']:,} tokens",
            cut=forecast["cut"],
            loo_time=duration(forecast["seconds"][REFERENCE]),
            provenance=_origin(facts),
            margin=answers.MARGIN,
        )
    )


def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(_TEMPLATE.parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)


def _html(shown: Any) -> str:
    return shown._repr_mimebundle_()["text/html"]


def _table(frame: pd.DataFrame, caption: str, digits: int = 3) -> Markup:
    """A table as HTML, with a caption and the scope of its headings; scrolls by itself."""
    ends = {"value": ("low", "high")} if "value" in frame else None
    html = _html(show(frame, digits=digits, intervals=ends))
    html = re.sub(r"(<table[^>]*>)", rf"\1<caption>{escape(caption)}</caption>", html, count=1)
    head, body = html.split("</thead>")
    head = head.replace("<th></th>", "<td></td>").replace("<th>", '<th scope="col">')
    body = body.replace("<th>", '<th scope="row">').replace("<th ", '<th scope="row" ')
    return Markup(
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"{head}</thead>{body}</div>"
    )


def _checked(gates: pd.DataFrame) -> dict[str, list[str]]:
    written = {column: [f"{value:.1e}" for value in gates[column]] for column in ("off", "allowed")}
    return {**written, "passed": ["yes" if passed else "NO" for passed in gates.passed]}


def _picture(figure: Any) -> str:
    encoded = base64.b64encode(figure.svg().encode()).decode()
    return f"data:image/svg+xml;base64,{encoded}"


def _forecast(forecast: Mapping[str, Any]) -> pd.DataFrame:
    rows = {
        label(name): {"takes": duration(seconds), "seconds a text": seconds / forecast["texts"]}
        for name in (*LRP, *COMPARED, REFERENCE)
        if (seconds := forecast["seconds"].get(name)) is not None
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _origin(facts: Mapping[str, Any]) -> dict[str, str]:
    """Where the rows come from, as names and values."""
    given = {k: v for k, v in facts["parameters"].items() if k != "maps" and v is not None}
    model, data, right = facts["model"], facts["data"], facts["accuracy"]
    return {
        "Model": f"{model['name']}, {model['identity']}",
        "Texts": f"{data['texts']} of {data['name']}, {data['identity']}",
        "Accuracy": "no labels of its classes" if right is None else f"{right:.1%}",
        "Command": facts["command"],
        "Parameters": ", ".join(f"{name} {value}" for name, value in given.items()),
        "Measured": f"{facts['date']}, {duration(facts['seconds'])}, {facts['device']}",
        "Versions": ", ".join(f"{name} {value}" for name, value in facts["versions"].items()),
        "Code": facts["revision"],
        "Rows": f"{facts['rows']['count']}, sha256 {facts['rows']['sha256']}",
    }
