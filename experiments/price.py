"""What an estimate of leave-one-out reaches for its price: recorded maps by name, and the picture.

Prices are in forward passes per text, a backward pass as two. How exact passes are shared out is in
`lrputils.removal.budgeted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import MultipleLocator

from experiments import frame, spoken
from lrputils.removal.budgeted import plan
from lrputils.report.figures.style import COLORS, NAMES, WIDTH, Drawing, looks, new_figure
from lrputils.stats import Array
from lrputils.study.agreement import WORDS, agreement, over_texts

CP_LRP, ATTN_LRP, ATTENTION = "CP-LRP", "AttnLRP", "attention × gradient"
ONE, HALVES, BOTH = "mask gradient", "half-removal", "mask gradient + half-removal"
HALF, LOO = "half of LOO", "LOO"
TEXT = ["model", "data", "id"]
# A map's name → method and options of `lrputils.attribute`.
WAYS = {
    CP_LRP: ("cp-lrp", {}),
    ATTN_LRP: ("attnlrp", {}),
    ATTENTION: ("attention-x-grad", {}),
    ONE: ("mask-gradient", {}),
    HALVES: ("mask-gradient", {"groups": 2}),
    BOTH: ("mask-gradient", {"groups": 2, "with_open": True}),
    HALF: ("budgeted-loo", {"budget": 0.5}),
}
# Method, form and groups of a recorded map → its name.
_RECORDED = {
    ("cp-lrp", "", 0): CP_LRP,
    ("attnlrp", "", 0): ATTN_LRP,
    ("attention-x-grad", "", 0): ATTENTION,
    ("mask-gradient", "exact-block", 1): ONE,
    ("mask-gradient", "exact-block", 2): HALVES,
    ("mask-gradient", frame.SUM, 2): BOTH,
    ("budgeted-loo", "", 0): HALF,
    ("loo", "", 0): LOO,
}
# Along the axis: the price, and the estimate that it buys.
_PLACES = {
    ONE: "3\nmask\ngradient",
    HALVES: "6\nhalf-\nremoval",
    BOTH: "9\nboth",
    HALF: "half of LOO\nexact for\ntop words",
    LOO: "LOO",
}
LRP = {ATTN_LRP: "^", CP_LRP: "v"}  # and their marks
# Data → the panel; "reviews" are those that come with the package.
PANELS = {"SST-2": "sentences", "IMDB": "reviews"}


def read_maps(runs: Sequence[str] = frame.MAIN) -> pd.DataFrame:
    """Return recorded maps of classifiers, and of language models asked with a prompt.

    Returns:
        rows of `experiments.frame.read_maps`, LRP at every read-out, leave-one-out by the attention
        mask; `map` is the name of an estimate, None for other methods.
    """
    maps = frame.read_maps("maps", "remedy", "gradients", runs=runs).query("rules == ''")
    maps = maps[maps.removal.isin(["", "attention-mask"])]
    maps = pd.concat([maps, _prompted()], ignore_index=True)
    for groups in (2, 4, 8):
        maps = frame.add_sums(maps, groups)
    maps = pd.concat([maps, _budgeted(maps)], ignore_index=True)
    kinds = zip(maps.method, maps.form, maps.groups, strict=True)
    return maps.assign(map=[_RECORDED.get(kind) for kind in kinds])


def compare_with_loo(maps: pd.DataFrame) -> pd.DataFrame:
    """Return each named map's r with leave-one-out over its text's own tokens, LRP at the words."""
    named = maps[maps["map"].notna() & maps.readout.isin(["", "word"])]
    r = agreement(named, [WORDS])
    exact = named[named["map"] == LOO].assign(r=1.0)
    return pd.concat([r, exact], ignore_index=True)


def by_text(
    maps: pd.DataFrame,
    ways: Sequence[str],
    compare: Callable[[Array, Array], dict[str, float]],
) -> pd.DataFrame:
    """Compare each text's maps with leave-one-out at its words, in texts of more than three.

    Args:
        maps: as of `read_maps`; LRP is taken where it was read at the words.
        ways: the maps to compare, in the column `map`.
        compare: from a map's scores and leave-one-out's, (words,), to numbers by their names.

    Returns:
        a row a text and map: `TEXT`, `map`, those numbers, and `run`, the model and kind of text.
    """
    rows = []
    named = maps[maps["map"].notna() & maps.readout.isin(["", "word"])]
    for text, part in named.groupby(TEXT, sort=False):
        words = np.array(part.content.iloc[0])
        if words.sum() <= 3:
            continue
        scores = {row.map: np.array(row.scores)[words] for row in part.itertuples()}
        for way in ways:
            numbers = compare(scores[way], scores[LOO])
            rows.append(dict(zip(TEXT, text, strict=True)) | {"map": way, **numbers})
    found = pd.DataFrame(rows)
    kind = found.data.replace(PANELS)
    return found.assign(run=found.model.str.split(",").str[0] + ", " + kind)


def read_curves() -> pd.DataFrame:
    """Return recorded Δ along perturbation curves: estimates, leave-one-out and AttnLRP.

    Returns:
        a row a text and `map`, with `model`, `data`, `id` and `delta`, in logits; of sentences
        those on which all estimates were recorded.
    """
    ours, reviews = (frame.read_rows(kind) for kind in ("estimates", "reviews"))
    variants = {"one-pass": ONE, "halves": HALVES, "sum": BOTH}
    methods = {"loo": LOO, "attention-x-grad": ATTENTION, "attnlrp": ATTN_LRP, "mask-gradient": ONE}
    ours["map"] = ours.variant.map(variants).fillna(ours.method.map(methods))
    theirs = frame.read_rows("sst").query("method == 'attnlrp'")
    theirs = theirs.merge(ours[TEXT].drop_duplicates())
    theirs = pd.concat([theirs, reviews]).query("family == '' and readout == 'word'")
    theirs["map"] = theirs.method.map(methods)
    theirs = theirs.dropna(subset="map")
    return pd.concat([theirs, ours], ignore_index=True)[[*TEXT, "map", "delta"]]


def levels(r: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of `compare_with_loo` over texts, by data, model and map."""
    return over_texts(r, ["data", "model", "map"])


def draw(means: pd.DataFrame, title: str) -> Drawing:
    """Draw r against the price: a panel per data set, one line per model, LRP as marks at 3.

    Colour means the model.

    Args:
        means: of `levels`.
        title: the figure's message.
    """
    means = means.rename(index=PANELS, level="data")
    data = means.index.unique("data")
    size = {"rows": len(data), "squeeze": False, "sharex": True, "sharey": True}
    figure, axes = new_figure(WIDTH, 1.9 + 2.1 * len(data), title=title, **size)
    figure.values = means
    own = looks(means.index.unique("model"))
    for axis, name in zip(axes.flat, data, strict=True):
        panel = means.loc[name]
        models = panel.index.unique("model")
        shifts = np.linspace(-0.12, 0.12, len(models)) if len(models) > 1 else [0.0]
        for model, shift in zip(models, shifts, strict=True):
            colour, shape, _, _ = own[model]
            line = panel.loc[model].reindex(_PLACES)
            places = np.arange(len(line)) + shift
            axis.vlines(places, line.low, line.high, color=colour, lw=1)
            look = {"color": colour, "marker": shape, "ms": 4, "lw": 1.4}
            axis.plot(places, line.value, label=NAMES.get(model, model), **look)
            for lrp_map, mark in LRP.items():
                if lrp_map in panel.loc[model].index:
                    value = panel.loc[model].value[lrp_map]
                    axis.plot(shift, value, mark, color=colour, ms=6, mfc="white")
        axis.set_title(name, fontsize=10, loc="left")
        axis.set_ylabel("r with LOO")
        axis.set_ylim(min(0, means.value.min() - 0.05), 1.05)
        axis.yaxis.set_major_locator(MultipleLocator(0.2))
    for lrp_map, mark in LRP.items():
        axes.flat[0].plot([], [], mark, color=COLORS["ink"], mfc="white", label=f"LRP: {lrp_map}")
    axes.flat[-1].set_xticks(range(len(_PLACES)), [*_PLACES.values()])
    axes.flat[-1].set_xlabel("forward passes per text")
    figure.legend_below(2)
    return figure


def _prompted() -> pd.DataFrame:
    """Language models' maps with the columns of classifiers'."""
    rows = spoken.read_prompted()
    halves = rows.method == "halves"
    estimate = halves | (rows.method == "mask-gradient")
    return rows.assign(
        method=rows.method.mask(halves, "mask-gradient"),
        form=np.where(estimate, "exact-block", ""),
        readout=np.where(rows.method.isin(["attnlrp", "cp-lrp"]), "word", ""),
        groups=estimate.astype(int) + halves,
        rules="",
        passes=0,
    )


def _budgeted(maps: pd.DataFrame) -> pd.DataFrame:
    """Half of leave-one-out's passes by `plan`, where the estimate that it takes was recorded."""
    exact = maps[maps.method == "loo"]
    estimates = maps[maps.method == "mask-gradient"].set_index([*TEXT, "form", "groups"])
    estimates = estimates.scores.to_dict()
    rows = []
    for row in exact.to_dict("records"):
        loo, own = np.array(row["scores"]), np.array(row["content"])
        options, affordable = plan(len(loo), 0.5)
        kind = (frame.SUM, options["groups"]) if options else ("exact-block", 1)
        key = (*(row[name] for name in TEXT), *kind)
        if key in estimates:
            scores = np.array(estimates[key])
            order = np.lexsort((-abs(scores), ~own))[:affordable]  # special tokens last
            scores[order] = loo[order]
            rows.append({**row, "method": "budgeted-loo", "removal": "", "scores": scores})
    return pd.DataFrame(rows)
