"""`lrp.audit`, and `lrputils audit`: a folder of rows, as `lrputils evaluate` keeps, and a page.

The page is one HTML file that reads offline, in print, by keyboard and in the dark; chapter 10
draws the same figures. `lrputils/assets/audit.html` escapes what is filled in, but for tables,
figures and heat maps, which escape their own texts.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lrputils.data.texts import TextStream, load_texts
from lrputils.model.classifier import Classifier
from lrputils.report import audit_answers as answers
from lrputils.report import audit_plan
from lrputils.report import audit_sentences as sentences
from lrputils.report.audit_plan import LRP, Audited, call, gates, judged, label
from lrputils.report.display import show, side_by_side
from lrputils.report.figures.marks import dots, lines
from lrputils.report.figures.style import NAMES, Drawing
from lrputils.report.heatmap import STYLE, Heatmap, templates
from lrputils.runs import datasets
from lrputils.runs.folders import atomic_write, disk_told
from lrputils.runs.results import compact
from lrputils.runs.settings import Settings
from lrputils.study.cost import Forecast, duration
from lrputils.study.evaluation import REFERENCE, evaluate

PAGE = "audit.html"
_ENDS = ["value", "low", "high"]


class Audit:
    """What an audit finds, shown as sentences.

    Attributes:
        run: the rows.
        checks: of `audit_plan.gates`.
        verdict: whether LRP tracks LOO.
        leads: who leads, by budget in forward passes.
        methods: a row a method: cost, r, and what `audit_answers.by_words` tells.
        tools: of each other tool whose maps were given: do they track LOO, and what of one pass is
            ahead of them?
        conventions: what the order of the two judged methods depends on.
        gains: what CP-LRP's rule in one layer adds, by read-out.
    """

    def __init__(self, run: Audited, checks: pd.DataFrame) -> None:
        self.run, self.checks = run, checks
        self.verdict = answers.verdict(run)
        r = answers.r_by_text(run, self.verdict.readout)
        self.leads = answers.at_budgets(r)
        self.methods = answers.by_method(r)
        words = answers.by_words(run, self.verdict.readout)
        self.methods[words.columns] = words
        self.conventions = answers.sensitivity(run.maps(), judged(run))
        self.gains = answers.layers(run)
        self.tools = {name: answers.judge_tool(r, name, judged(run)[0]) for name in run.tools}

    @property
    def sound(self) -> bool:
        """Whether all checks passed; the rest says nothing where one failed."""
        return bool(self.checks.passed.all())

    @property
    def ruled(self) -> bool:
        """Whether the model has rules, so that LRP is judged."""
        return judged(self.run) == LRP

    @property
    def headline(self) -> str:
        """The answer, in a sentence."""
        return sentences.headline(self.verdict, ruled=self.ruled, sound=self.sound)

    def of_tools(self) -> list[str]:
        """Say of each tool whether its maps track LOO."""
        return [sentences.of_tool(name, tool) for name, tool in self.tools.items()]

    def __str__(self) -> str:
        leads = self.leads.items()
        lines = [
            f"{self.headline} {sentences.of_verdict(self.verdict)}",
            "",
            *self.of_tools(),
            *(f"up to {cost:g} passes: {sentences.of_lead(lead)}" for cost, lead in leads),
            "",
            sentences.of_conventions(self.conventions),
            *(
                f"{'passed' if ok else 'FAILED'}: {check}"
                for check, ok in self.checks.passed.items()
            ),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def audit(
    classifier: Classifier,
    texts: Any,
    *,
    scores: Any = None,
    units: str = "token",
    target: int | str | None = None,
    max_length: int | None = None,
    batch_size: int = 4,
    curves: int | None = None,
) -> Audit:
    """Find whether LRP, and other tools' maps, track leave-one-out on a model and texts.

    `lrputils audit` writes the same into a page, and keeps the rows.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer, or texts in any form that it takes.
        scores: maps of other tools, name → table or sequence; see `lrputils.study.supplied`.
        units: what is removed, scored and compared: each "token", "word" or "sentence".
        target: the class to explain, a number or a label; the predicted one if not given.
        max_length: longer texts are cut there; at the model's limit if not given.
        batch_size: texts a batch.
        curves: also remove tokens along every map, so many at once, for the column Δ.

    Raises:
        ValueError: see `lrputils.evaluate`.
    """
    texts = load_texts([texts] if isinstance(texts, str) else texts)
    how = {"units": units, "target": target, "max_length": max_length}
    settings = Settings(methods=(), batch_size=batch_size, curves=curves, **how)
    asked = settings.asked(classifier, audit_plan.variants(classifier, settings))
    rows = evaluate(classifier, texts, **asked, scores=scores, progress=False).rows
    run = Audited(compact(rows), units)
    return Audit(run, gates(classifier, texts.take(range(2)[: len(texts)]), max_length))


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
        settings: see `Settings`; its methods are measured too, and not shown.
        whole: all texts, whose cost is forecast; `texts` if not given.
        command: what to call to get the same page.
        parameters: how the texts were chosen.
        quiet: no progress.

    Returns:
        The page.

    Raises:
        ValueError, OSError: see `lrputils.runs.datasets.evaluate_dataset`.
    """
    settings, out = settings or Settings(methods=()), Path(out)
    variants = audit_plan.variants(classifier, settings)
    datasets.evaluate_dataset(
        classifier,
        texts,
        out,
        settings,
        variants=variants,
        command=command,
        parameters=parameters,
        quiet=quiet,
    )
    recording = datasets.read(out)
    facts = recording.provenance
    if not quiet:
        print("checking the rules, timing a batch, writing the page …", file=sys.stderr)
    run = Audited(recording.rows, settings.units)
    found = Audit(run, gates(classifier, next(texts.parts(2)), settings.max_length))
    forecast = datasets.forecast_dataset(
        classifier, whole or texts, None, settings, variants=variants
    )
    spent = duration(forecast.seconds[REFERENCE])
    next_step = sentences.next_step(found.leads, spent, forecast.texts)
    html = _page(classifier, texts, found, facts, forecast, next_step)
    with disk_told(out), atomic_write(out / PAGE) as partial:
        partial.write_text(html, encoding="utf-8")
    if not quiet:
        told = [sentences.of_verdict(found.verdict), *found.of_tools(), next_step]
        print(found.headline, *(told if found.sound else ()), file=sys.stderr)
    return out / PAGE


def _worst(
    classifier: Classifier,
    texts: TextStream,
    run: Audited,
    verdict: answers.Verdict,
    target: int | str | None,
) -> dict[str, Heatmap]:
    """The texts that the verdict's map misses most: caption → LOO and two or three methods."""
    place = verdict.readout
    r = run.per_text(answers.R, [verdict.method], place)[verdict.method]
    lowest = r.round(6).nsmallest(3)  # of r that float32 cannot tell apart, the first
    given = [text for part in texts.parts(256) for text in part]
    rows = run.rows[run.rows.family == ""].set_index(["position", "method", "readout"])
    shown = {REFERENCE: "word", **dict.fromkeys(judged(run), place)}
    others = ["mask-gradient"] if "mask-gradient" in run.names else []
    shown |= dict.fromkeys([*others, *run.tools], "word")
    exact = rows.xs((REFERENCE, "word"), level=("method", "readout"))
    largest = exact.apply(lambda row: abs(row.scores[row.content]).max(), axis=1)
    heatmaps = {}
    for text, least in lowest.items():
        maps = {}
        for name, at in shown.items():
            own = rows.loc[(text, name, at)]
            told = "" if name == REFERENCE else f" (r {own[answers.R]:.2f})"
            maps[label(name) + told] = own.scores
        caption = (
            f"Id {exact.id[text]}, text {text + 1} of those drawn: {label(verdict.method)} has r "
            f"{least:.2f}; LOO's largest score of a {run.units} is {largest[text]:.2g}, on the "
            f"median text {largest.median():.2g}"
        )
        cut = int(exact.tokens[text]) if exact.cut[text] else None
        heatmaps[caption] = Heatmap.of(
            classifier, given[text], maps, target=target, units=run.units, max_length=cut
        )
    return heatmaps


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
    cheapest = methods.passes[methods.r > answers.TRACKS].min()
    title = f"Above {answers.TRACKS:.2f} from {cheapest:.3g} forward passes on (in brackets)"
    xlabel = f"mean r with LOO; dashed: {answers.TRACKS:.2f}"
    return dots({"": rows}, title=title, xlabel=xlabel, lines={"": answers.TRACKS}, columns=0)


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
    whole: Forecast,
    next_step: str,
) -> str:
    """Return the page of an audit as HTML.

    Args:
        classifier: the audited one.
        texts: those it read.
        found: in the rows.
        facts: what `lrputils.runs.datasets.read` says of them.
        whole: the forecast of the whole file.
        next_step: what it says to do in any case.
    """
    run, verdict = found.run, found.verdict
    known = [name for name in run.names if name not in run.tools]
    seconds = pd.Series(whole.seconds)[known].rename(label)
    forecast = (seconds / whole.texts).reindex([*map(label, known)]).to_frame("seconds a text")
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
        tables["layers"] = pd.concat(found.gains)[[*_ENDS, "lead"]].rename(index=NAMES)
        figures["layers"] = bypassed(found.gains)
    filled = templates(rounded=_rounded, base64=_base64, duration=duration)
    return filled.get_template("audit.html").render(
        facts=facts,
        unit=run.units,
        judged=found.conventions.names,
        ruled=found.ruled,
        found=found,
        verdict=verdict,
        headline=found.headline,
        next_step=next_step,
        say=sentences,
        calls={label(name): call(name, verdict.readout, run.units) for name in run.names},
        whole=whole,
        style=STYLE,
        heatmaps=missed,
        tables=tables,
        figures=figures,
        tracks=answers.TRACKS,
        margin=answers.MARGIN,
        false_leads=max(answers.FALSE_LEADS.values()),
        loo=REFERENCE,
    )


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """A table's texts, the index in front, an interval in a cell's second line."""
    frame = frame.dropna(axis=1, how="all")
    ends = {name: ("low", "high") for name in ("value", "r") if name in frame and "low" in frame}
    return show(frame, intervals=ends).rounded(between="{}\n{}").reset_index()


def _base64(figure: Drawing) -> str:
    return base64.b64encode(figure.svg().encode()).decode()
