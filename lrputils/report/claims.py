"""The paper's claims over the specification grid, and beside its printed numbers.

A claim is a difference that the paper found positive. Each function takes recordings by model and
data, ("twelve layers", "SST-2"), and returns a table for the introduction or chapter 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pandas as pd

from lrputils import paper, stats
from lrputils.model.readout import READOUTS
from lrputils.report.tables import CANNOT_TELL, MARGIN, verdict
from lrputils.runs import results
from lrputils.runs.results import Recording
from lrputils.study import softmax_errors, specifications

Runs = Mapping[tuple[str, str], pd.DataFrame]
Recordings = Mapping[tuple[str, str], Recording]

SMALL, LARGE = "six layers", "twelve layers"
RUNS = {
    (SMALL, "SST-2"): "minilm-sst2",
    (LARGE, "SST-2"): "mpnet-sst2",
    (SMALL, "IMDB"): "minilm-imdb",
    (LARGE, "IMDB"): "mpnet-imdb",
}
# claim → (what should lie above, what below)
CLAIMS = {
    "CP-LRP tracks LOO better than AttnLRP": ("cp-lrp", "attnlrp"),
    "closing the softmax, value's half kept, helps": ("half-value", "attnlrp"),
    "the identity in the softmax's place helps": ("identity", "attnlrp"),
    "CP's rule helps more in the later half of the layers": ("back-half", "front-half"),
}
PAPERS = {"tokens": specifications.EVERY, "normalisation": specifications.SUM_TO_ONE}
CONVENTIONS = {
    "raw": {"tokens": specifications.EVERY, "normalisation": specifications.RAW},
    "raw, no [CLS]": {"tokens": specifications.NO_CLS, "normalisation": specifications.RAW},
    "sum to one": PAPERS,
    "sum to one, no [CLS]": {**PAPERS, "tokens": specifications.NO_CLS},
}
_USUAL = {"rules": specifications.DEFAULT, "removal": "attention-mask", "coefficient": "Pearson"}
# Two printed numbers, each rounded to 0.01, differ by this much more or less.
_ROUNDING = 0.01
_DATA = {"SST-2": "sst", "IMDB": "imdb"}
_SIGNS = {"AttnLRP − CP-LRP": ("attnlrp", "cp-lrp"), "AttnLRP − LOO": ("attnlrp", "loo")}


def recorded(experiment: str | None = None) -> dict[tuple[str, str], Recording]:
    """Load the recordings of `RUNS` that there are, by model and data.

    Of `results/EXPERIMENT`, as "maps"; if not given, of the data's folder: the runs with
    perturbation curves and layer ablations.
    """
    found = {}
    for (model, data), name in RUNS.items():
        with suppress(FileNotFoundError):
            found[model, data] = results.load(experiment or _DATA[data], name)
    return found


def grid(
    runs: Runs, first: str, second: str, rules: Sequence[str] = specifications.VARIED_RULES
) -> pd.DataFrame:
    """Return the curve of `first − second` over runs, under the removals that all of them have."""
    removals = set.intersection(*(set(found.columns.unique("removal")) for found in runs.values()))
    parts = {
        name: specifications.at(
            specifications.curve(specifications.difference(found, first, second)),
            rules=rules,
            removal=removals,
        )
        for name, found in runs.items()
    }
    return specifications.across(parts)


def usual(table: pd.DataFrame, **choices: str) -> pd.DataFrame:
    """Return the rows with the default rules, LOO by the mask and Pearson's r; see `at`."""
    known = {name: value for name, value in _USUAL.items() if name in table.index.names}
    return specifications.at(table, **{**known, **choices})


def by_convention(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the usual rows of a run's curve under each of `CONVENTIONS`, a row a read-out."""
    return {name: usual(table, **choices) for name, choices in CONVENTIONS.items()}


def listed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a curve's rows as they are shown: choices that differ as one name, with intervals."""
    varied = [level for level in table.index.names if table.index.unique(level).size > 1]
    names = [", ".join(row) for row in table.reset_index()[varied].to_numpy()]
    frame = table[["value", "low", "high"]].set_axis(names, axis=0)
    frame.attrs["intervals"] = {"value": ("low", "high")}
    return frame


def conclusions(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Say under how many specifications each claim holds.

    From claim → curve, whose positive values speak for the claim: a row a claim; `specifications`,
    how many; `holds`, `opposite` and `undecided`, percentages of them by `outcome`. They share
    texts and most choices: a percentage describes the grid and is no probability.
    """
    names = ["holds", "opposite", "undecided"]
    shares = {n: 100 * specifications.outcome(t).set_axis(names) for n, t in tables.items()}
    frame = pd.DataFrame.from_dict(shares, orient="index")
    frame.insert(0, "specifications", pd.Series({name: len(t) for name, t in tables.items()}))
    return frame


def later_layers(texts: Recordings) -> pd.DataFrame:
    """What CP's rule gains in one later layer less in one earlier layer: a curve over the runs.

    Indexed by model, data, read-out and convention; see `lrputils.study.softmax_errors.halves`.
    """
    found = {name: softmax_errors.halves(run)["late − early"] for name, run in texts.items()}
    return pd.concat(found, names=["model", "data", "read-out", "convention"])


def along_curves(texts: Recordings) -> pd.DataFrame:
    """Compare methods by Δ = LeRF − MoRF in each run, beside the paper's differences.

    A row a comparison and run: `paper`, `recorded` with `low` and `high`, in logits of different
    models, and whether the signs agree, as `sign` says it.
    """
    rows = {}
    for what, (first, second) in _SIGNS.items():
        for (model, data), run in texts.items():
            printed = paper.table2().loc[_DATA[data]].delta
            wide = run.per_text("delta", [first, second])
            own = stats.paired_difference(wide[first], wide[second])[:3]
            gap = printed[first] - printed[second]
            rows[f"{what}: {data}, {model}"] = (gap, *own, sign(gap, *own[1:]))
    return _recorded_beside(rows, "sign")


def sign(printed: float, low: float, high: float) -> str:
    """Say whether an interval has a printed difference's sign; "" where rounding leaves it none."""
    if abs(printed) <= _ROUNDING + 1e-9:
        return ""
    if low <= 0 <= high:
        return CANNOT_TELL
    return "holds" if (low > 0) == (printed > 0) else "opposite"


def levels(runs: Runs) -> pd.DataFrame:
    """Mean r with LOO under the paper's convention at each read-out, beside the paper's.

    A row a method, run and read-out: `paper`, `recorded`, `low`, `high`, and `verdict`, "too wide"
    where the interval could not have shown agreement.
    """
    rows = {}
    for method in ("attnlrp", "cp-lrp"):
        for (model, data), found in runs.items():
            r = specifications.by(usual(found[method].T, **PAPERS), "read-out").T
            table = stats.estimates(r)
            printed = paper.table2().loc[_DATA[data], method].r
            for readout in (place for place in READOUTS if place in table.index):
                value, low, high = table.loc[readout, ["value", "low", "high"]]
                judged = verdict(low - printed, high - printed)
                if judged == CANNOT_TELL and high - low > 2 * MARGIN:
                    judged = "too wide"
                name = f"{paper.METHODS[method]}, {data}, {model}, {readout}"
                rows[name] = (printed, value, low, high, judged)
    return _recorded_beside(rows, "verdict")


def _recorded_beside(rows: Mapping[str, tuple], judged: str) -> pd.DataFrame:
    columns = ["paper", "recorded", "low", "high", judged]
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    frame.attrs["intervals"] = {"recorded": ("low", "high")}
    return frame
