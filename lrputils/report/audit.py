"""`lrputils audit`: rows in a folder, as `lrputils evaluate` keeps them, and a page beside them.

The page is one HTML file that reads offline, in print, by keyboard and in the dark; chapter 10
draws the same figures. `lrputils/assets/audit.html` escapes what is filled in, but for tables,
figures and heat maps, which escape their own texts.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from lrputils.data.texts import TextStream
from lrputils.model.classifier import Classifier
from lrputils.propagation.composites import is_covered
from lrputils.report import audit_answers as answers
from lrputils.report import audit_plan
from lrputils.report.audit_answers import Audit
from lrputils.report.audit_plan import COMPARED, LRP, Audited, call, gates, judged, label
from lrputils.report.display import show, side_by_side
from lrputils.report.figures.marks import dots, lines
from lrputils.report.figures.style import NAMES, Drawing
from lrputils.report.heatmap import STYLE, Heatmap, templates
from lrputils.runs import datasets
from lrputils.runs.folders import atomic_write, disk_told, read_json, write_json
from lrputils.runs.settings import Settings
from lrputils.study.cost import duration
from lrputils.study.evaluation import REFERENCE
from lrputils.study.supplied import supplied

PAGE, NOTES = "audit.html", "audit.json"
_ENDS = ["value", "low", "high"]


def write_audit(
    classifier: Classifier,
    texts: TextStream,
    out: str | Path,
    settings: Settings | None = None,
    *,
    whole: TextStream | None = None,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Path:
    """Audit a classifier on texts into `out`: a run, and the page `audit.html`.

    A killed run goes on by the same call; a finished one takes more texts, or the page alone is
    written again.

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
        The page.

    Raises:
        ValueError, OSError: see `lrputils.runs.datasets.evaluate_dataset`.
    """
    settings, out = settings or audit_plan.settings(), Path(out)
    variants = audit_plan.variants(classifier, settings)
    named = {getattr(variant, "name", "") for variant in variants}
    maps = [label(name) for name in (*LRP, *COMPARED) if name in named]
    options = {**(parameters or {}), "maps": maps}
    how = {"variants": variants, "command": command, "parameters": options, "quiet": quiet}
    datasets.evaluate_dataset(classifier, texts, out, settings, **how)
    recording = datasets.read(out)
    rows, facts = recording.rows, recording.provenance
    path, notes = out / NOTES, {}
    with suppress(FileNotFoundError, ValueError):  # of a damaged one too, they are measured again
        notes = read_json(path)
    if notes.get("texts") != facts["texts"]:  # measured once beside the rows
        if not quiet:
            print("checking the rules, and timing a batch …", file=sys.stderr)
        forecast = audit_plan.expected(classifier, whole or texts, settings)
        checks = gates(classifier, next(texts.parts(2)), settings.max_length)
        notes = {
            "texts": facts["texts"],
            "gates": checks.to_dict("index"),
            "forecast": asdict(forecast),
        }
        write_json(path, notes)
    if not quiet:
        print("writing the page …", file=sys.stderr)
    run = Audited(rows, settings.units, audit_plan.prices(supplied(settings.scores)))
    found = Audit(run, pd.DataFrame.from_dict(notes["gates"], orient="index"))
    said = _headline(found.verdict, is_covered(classifier), found.sound)
    html = _page(classifier, texts, found, facts, notes["forecast"], said)
    with disk_told(out), atomic_write(out / PAGE) as partial:
        partial.write_text(html, encoding="utf-8")
    if not quiet:
        told = [found.verdict, *found.tools.values()] if found.sound else []
        print(said, *told, file=sys.stderr)
    return out / PAGE


def _headline(verdict: answers.Verdict, ruled: bool, sound: bool) -> str:
    """The answer in a sentence, of a model with rules or without, if its checks are `sound`."""
    if not sound:
        return "Do not use these numbers: a check fails on this model."
    subject = "LRP" if ruled else "a gradient map"
    said = {"yes": f"Yes: {subject} tracks LOO.", "no": "No: no gradient map tracks LOO."}
    said |= {"no": "No: LRP does not track LOO."} if ruled else {}
    return said.get(verdict.answer, f"Cannot tell whether {subject} tracks LOO.")


def _worst(
    classifier: Classifier,
    texts: TextStream,
    run: Audited,
    verdict: answers.Verdict,
    target: int | str | None,
) -> dict[str, Heatmap]:
    """The texts that the verdict's map misses most: caption → LOO and two or three methods."""
    place = verdict.readout
    found = run.per_text(answers.R, [verdict.method], place)[verdict.method]
    lowest = found.round(6).nsmallest(3)  # of r that float32 cannot tell apart, the first
    given = [text for part in texts.parts(256) for text in part]
    rows = run.rows[run.rows.family == ""].set_index(["position", "method", "readout"])
    shown = {REFERENCE: "word", **dict.fromkeys(judged(run), place)}
    others = ["mask-gradient"] if "mask-gradient" in run.names else []
    shown |= dict.fromkeys([*others, *run.tools], "word")
    exact = rows.xs((REFERENCE, "word"), level=("method", "readout"))
    largest = exact.apply(lambda row: abs(row.scores[row.content]).max(), axis=1)
    found = {}
    for text, r in lowest.items():
        maps = {}
        for name, at in shown.items():
            own = rows.loc[(text, name, at)]
            told = "" if name == REFERENCE else f" (r {own[answers.R]:.2f})"
            maps[label(name) + told] = own.scores
        caption = (
            f"Text {text + 1}, id {exact.id[text]}: {label(verdict.method)} has r {r:.2f}; LOO's "
            f"largest score is {largest[text]:.2g}, on the median text {largest.median():.2g}"
        )
        cut = int(exact.tokens[text]) if exact.cut[text] else None
        how = {"target": target, "units": run.units, "max_length": cut}
        found[caption] = Heatmap.of(classifier, given[text], maps, **how)
    return found


def readouts(verdicts: Mapping[str, answers.Verdict]) -> Drawing:
    """Draw the judged methods at each read-out, a panel a run, and the bound of yes and no."""
    panels = {name: verdict.table.drop("difference") for name, verdict in verdicts.items()}
    bound = {"lines": dict.fromkeys(panels, answers.TRACKS), "line": f"{answers.TRACKS:.2f}"}
    title = f"Is the mean r with LOO above {answers.TRACKS:.2f}?"
    return dots(panels, title=title, xlabel="mean r with LOO", **bound)


def prices(methods: pd.DataFrame) -> Drawing:
    """Draw each method's r, of `audit_answers.by_method`, cheapest first."""
    spent = methods.passes.map("{:.3g}".format).replace("nan", "?")
    means = methods.rename(columns={"r": "value"})
    rows = {name: means.loc[[name]].set_axis([f"{name} ({n})"]) for name, n in spent.items()}
    title = "What a method's forward passes (in brackets) buy"
    return dots({"": rows}, title=title, xlabel="mean r with LOO", columns=0)


def conventions(found: answers.Sensitivity) -> Drawing:
    """Draw the difference of the two methods, one convention changed at a time."""
    table = found.one[["difference", "difference low", "difference high"]].set_axis(_ENDS, axis=1)
    name, title = " − ".join(found.names), "One convention changed at a time"
    return dots({"": {name: table}}, title=title, xlabel="difference of mean r", zero=0)


def bypassed(gains: Mapping[str, pd.DataFrame]) -> Drawing:
    """Draw what the bypass of one layer adds, a panel a read-out."""
    title = "CP-LRP's rule in one layer alone"
    return lines(gains, xlabel="layer", ylabel="change of r", title=title, zero=True)


def _page(
    classifier: Classifier,
    texts: TextStream,
    found: Audit,
    facts: Mapping[str, Any],
    whole: Mapping[str, Any],
    headline: str,
) -> str:
    """Return the page of an audit as HTML.

    Args:
        classifier: the audited one.
        texts: those it read.
        found: in the rows.
        facts: what `lrputils.runs.datasets.read` says of them.
        whole: the forecast of the whole file, as `write_audit` keeps it.
        headline: what the page says first.
    """
    run, verdict = found.run, found.verdict
    known = [name for name in run.names if name not in run.tools]
    seconds = pd.Series(whole["seconds"])[known].rename(label)
    forecast = (seconds / whole["texts"]).reindex([*map(label, known)]).to_frame("seconds a text")
    forecast.insert(0, "the whole file", seconds.map(duration))
    exact = {column: found.checks[column].map("{:.1e}".format) for column in ("off", "allowed")}
    passed = found.checks.passed.map({True: "yes", False: "NO"})
    missed = _worst(classifier, texts, run, verdict, facts["options"].get("target"))
    parts = {name: verdict.table.loc[name] for name in verdict.table.index.unique(0)}
    tables = {
        "verdict": side_by_side(parts).rename(index=NAMES),
        "methods": found.methods,
        "checks": found.checks.assign(**exact, passed=passed),
        "conventions": found.conventions.one,
        "forecast": forecast,
    }
    figures = {
        "verdict": readouts({"": verdict}),
        "methods": prices(found.methods),
        "conventions": conventions(found.conventions),
    }
    if found.gains:
        tables["layers"] = pd.concat(found.gains)[_ENDS].rename(index=NAMES)
        figures["layers"] = bypassed(found.gains)
    filled = templates(rounded=_rounded, base64=_base64, duration=duration)
    return filled.get_template("audit.html").render(
        facts=facts,
        unit=run.units,
        judged=found.conventions.names,
        ruled=is_covered(classifier),
        found=found,
        verdict=verdict,
        headline=headline,
        error_rate=answers.error_rate(facts["texts"]),
        calls={label(name): call(name, verdict.readout, run.units) for name in run.names},
        in_layers=answers.in_layers(found.gains),
        whole=whole,
        style=STYLE,
        heatmaps=missed,
        tables=tables,
        figures=figures,
        tracks=answers.TRACKS,
        margin=answers.MARGIN,
        loo=REFERENCE,
    )


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """A table's texts, the index in front, an interval in a cell's second line."""
    ends = {name: ("low", "high") for name in ("value", "r") if name in frame and "low" in frame}
    return show(frame, intervals=ends).rounded(between="{}\n{}").reset_index()


def _base64(figure: Drawing) -> str:
    return base64.b64encode(figure.svg().encode()).decode()
