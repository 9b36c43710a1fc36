"""What an estimate of leave-one-out reaches for its price: recorded maps by name, and the picture.

Prices are in forward passes per text, a backward pass as two. How exact passes are shared out is in
`lrputils.removal.budgeted`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.ticker import MultipleLocator

from experiments import frame, spoken
from lrputils.attribution import METHODS
from lrputils.removal.budgeted import plan
from lrputils.report.figures.style import COLORS, NAMES, WIDTH, Drawing, new_figure
from lrputils.stats import Array
from lrputils.study.agreement import WORDS, agreement, over_texts
from lrputils.study.variants import spelled

CP_LRP, ATTN_LRP, ATTENTION = "CP-LRP", "AttnLRP", "Attention × gradient"
ONE, HALVES, BOTH = "Mask gradient", "Half-removal", "Nine-pass map"
THREE, SIX = "Budgeted LOO, 6 passes", "Budgeted LOO, 9 passes"
HALF, LOO = "Budgeted LOO, a half", "LOO"
TEXT = ["model", "data", "id"]
# A map's name → method and options of `lrputils.attribute`.
WAYS = {
    CP_LRP: ("cp-lrp", {}),
    ATTN_LRP: ("attnlrp", {}),
    ATTENTION: ("attention-x-grad", {}),
    ONE: ("mask-gradient", {}),
    HALVES: ("mask-gradient", {"groups": 2}),
    BOTH: ("mask-gradient", {"groups": 2, "with_open": True}),
    THREE: ("budgeted-loo", {"budget": 6}),
    SIX: ("budgeted-loo", {"budget": 9}),
    HALF: ("budgeted-loo", {"budget": 0.5}),
}
_BUDGETS = {name: options["budget"] for name, (_, options) in WAYS.items() if "budget" in options}
# Method and options of a recorded map → its name.
_RECORDED = {(method, spelled(options)): name for name, (method, options) in WAYS.items()}
_RECORDED["loo", ""] = LOO
# What the picture joins by a line from the mask gradient on, with the method whose colour it has.
_LINES = {
    "Half-removal, nine-pass map": ("mask-gradient", [ONE, HALVES, BOTH]),
    "Budgeted LOO": ("budgeted-loo", [ONE, THREE, SIX, HALF, LOO]),
}
# Maps of three passes: method, mark, and how far beside three it stands.
_OF_THREE = {
    ONE: ("mask-gradient", "o", 1),
    CP_LRP: ("cp-lrp", "v", 0.92),
    ATTN_LRP: ("attnlrp", "^", 1.09),
    ATTENTION: ("attention-x-grad", "D", 1.19),
}
# Data → the panel; "reviews" are those that come with the package.
PANELS = {"SST-2": "sentences", "IMDB": "reviews"}


def read_maps(runs: Sequence[str] = frame.MAIN) -> pd.DataFrame:
    """Return recorded maps of classifiers, and of language models asked with a prompt.

    Returns:
        rows of `experiments.frame.read_maps`, LRP at every read-out, leave-one-out by the attention
        mask; `map` is the name of an estimate, None for other methods.
    """
    maps = frame.read_maps("maps", "remedy", "gradients", runs=runs)
    maps = maps[maps.removal.isin(["", "attention-mask"])]
    maps = pd.concat([maps, spoken.read_prompted().assign(passes=0)], ignore_index=True)
    for groups in (2, 4, 8):
        maps = frame.add_sums(maps, groups)
    maps = pd.concat([maps, _budgeted(maps)], ignore_index=True)
    return maps.assign(map=_names(maps))


def compare_with_loo(maps: pd.DataFrame) -> pd.DataFrame:
    """Return each named map's r with leave-one-out over its text's own tokens, LRP at the words.

    `passes` is its price; of leave-one-out a pass per token of the text's own.
    """
    named = maps[maps["map"].notna() & maps.readout.isin(["", "word"])]
    named = named.assign(passes=named.content.map(np.sum).astype(float))
    for name, (method, options) in WAYS.items():
        own = named["map"] == name
        lengths = named.scores[own].map(len)
        named.loc[own, "passes"] = [METHODS[method].passes(n, options) for n in lengths]
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


def exact_by_ranking(maps: pd.DataFrame) -> pd.DataFrame:
    """Put exact scores in the mask gradient's place at the words that a map ranks first.

    Args:
        maps: as of `read_maps`; texts of at most nine words are left out.

    Returns:
        a row a text and way to spend passes, `ranked` ("6 by AttnLRP"), with `r` over own tokens.
    """
    random, rows = np.random.default_rng(0), []
    named = maps[maps["map"].notna() & maps.readout.isin(["", "word"])]
    for text, part in named.groupby(TEXT, sort=False):
        own, scores = np.array(part.content.iloc[0]), part.set_index("map").scores
        if own.sum() <= 9:
            continue
        one, lrp, loo = (np.array(scores[name])[own] for name in (ONE, ATTN_LRP, LOO))
        chance = random.normal(size=len(loo))
        ways = {"mask gradient": (one, 6), "AttnLRP": (lrp, 6), "chance": (chance, 6)}
        for by, (ranks, passes) in [*ways.items(), ("mask gradient", (one, 9))]:
            first, mixed = abs(ranks).argsort()[-passes:], one.copy()
            mixed[first] = loo[first]
            r = np.corrcoef(mixed, loo)[0, 1]
            rows.append((*text, f"{passes} by {by}", r))
    return pd.DataFrame(rows, columns=[*TEXT, "ranked", "r"])


def read_curves() -> pd.DataFrame:
    """Return recorded Δ along perturbation curves: estimates, leave-one-out and AttnLRP.

    Returns:
        a row a text and `map`, with `model`, `data`, `id` and `delta`, in logits; of sentences
        those on which all estimates were recorded.
    """
    ours, reviews = (frame.read_rows(kind) for kind in ("estimates", "reviews"))
    theirs = frame.read_rows("sst").query("method == 'attnlrp'")
    theirs = theirs.merge(ours[TEXT].drop_duplicates())
    theirs = pd.concat([theirs, reviews]).query("family == '' and readout == 'word'")
    curves = pd.concat([theirs.query("method != 'cp-lrp'").assign(options=""), ours])
    curves = curves.assign(map=_names(curves)).dropna(subset="map")
    return curves.reset_index(drop=True)[[*TEXT, "map", "delta"]]


def levels(r: pd.DataFrame) -> pd.DataFrame:
    """Return the mean r and `passes` of `compare_with_loo` over texts, by data, model and map."""
    at = ["data", "model", "map"]
    return over_texts(r, at).join(r.groupby(at).passes.mean())


def draw(means: pd.DataFrame, title: str) -> Drawing:
    """Draw r against the price: a panel per model and data, a line per way to spend passes.

    Args:
        means: of `levels`.
        title: the figure's message.
    """
    means = means.rename(index=PANELS, level="data")
    by_panel = means.sort_index()
    panels = list(dict.fromkeys(zip(*map(means.index.get_level_values, (0, 1)), strict=True)))
    rows = -(-len(panels) // 2)
    size = {"rows": rows, "columns": min(2, len(panels)), "squeeze": False, "sharey": True}
    figure, grid = new_figure(WIDTH, 1.4 + 2.1 * rows, title=title, **size)
    figure.values = means
    for axis, (data, model) in zip(grid.flat, panels, strict=False):
        panel = by_panel.loc[data, model]
        for label, (method, names) in _LINES.items():
            line = panel.reindex(names).dropna(subset="value")
            look = {"color": COLORS[METHODS[method].colour], "label": label}
            axis.vlines(line.passes, line.low, line.high, color=look["color"], lw=2, alpha=0.5)
            shape = "o" if method == "mask-gradient" else "s"
            axis.plot(line.passes, line.value, marker=shape, ms=4.5, lw=1.4, **look)
        if LOO in panel.index:
            end = panel.loc[LOO]
            axis.plot(end.passes, end.value, "s", color=COLORS["ink"], ms=4.5, label=LOO)
        for name, (method, mark, shift) in _OF_THREE.items():
            if name in panel.index:
                row, colour = panel.loc[name], COLORS[METHODS[method].colour]
                axis.vlines(3 * shift, row.low, row.high, color=colour, lw=2, alpha=0.5)
                axis.plot(3 * shift, row.value, mark, color=colour, ms=6.5, label=name)
        axis.set_title(f"{NAMES.get(model, model.split(',')[0])}, {data}", fontsize=10, loc="left")
        axis.set_xscale("log")
        ends = sorted({3, 6, 9, round(panel.passes.max())})
        axis.set_xticks(ends, ends)
        axis.minorticks_off()
        axis.yaxis.set_major_locator(MultipleLocator(0.2))
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in grid[:, 0]:
        axis.set_ylabel("r with LOO")
        axis.set_ylim(means.low.min() - 0.05, 1.05)
    for axis in grid[-1]:
        axis.set_xlabel("forward passes per text")
    figure.legend_below(2)
    return figure


def _names(maps: pd.DataFrame) -> list[str | None]:
    return [_RECORDED.get(way) for way in zip(maps.method, maps.options, strict=True)]


def _budgeted(maps: pd.DataFrame) -> pd.DataFrame:
    """Exact passes by `plan` for each budget, where the estimate that it takes was recorded."""
    exact = maps[maps.method == "loo"]
    estimates = maps[maps.method == "mask-gradient"].set_index([*TEXT, "options"])
    estimates = estimates.scores.to_dict()
    rows = []
    for row, (name, budget) in product(exact.to_dict("records"), _BUDGETS.items()):
        loo, own = np.array(row["scores"]), np.array(row["content"])
        options, affordable = plan(len(loo), budget)
        key = (*map(row.get, TEXT), spelled(options))
        if key in estimates:
            scores = np.array(estimates[key])
            order = np.lexsort((-abs(scores), ~own))[:affordable]  # special tokens last
            scores[order] = loo[order]
            which = {"method": "budgeted-loo", "options": spelled(WAYS[name][1]), "removal": ""}
            rows.append({**row, **which, "scores": scores})
    return pd.DataFrame(rows)
