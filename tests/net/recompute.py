"""Headline values from `results/` once more, by numpy and pandas alone: nothing of `lrputils`.

Each function takes the words behind its name in the last column of `numbers.csv`. It returns a
value a text, whose mean is compared, a pair of them, whose ratio of means is, or one number.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations, product
from math import ceil, comb
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
from scipy.stats import rankdata

RESULTS = Path(__file__).resolve().parents[2] / "results"


def estimate(values: pd.Series, per: pd.Series | None = None) -> tuple[float, float, float, int]:
    """Mean over texts (of `per`: the ratio of means), 95% bootstrap interval, number of texts."""
    kept = (values if per is None else pd.concat([values, per], axis=1)).dropna()
    texts = len(kept)
    draws = np.random.default_rng(1).integers(texts, size=(min(5_000_000 // texts, 50_000), texts))
    whole, *means = [
        (x.mean(), x[draws].mean(axis=1)) for x in kept.to_numpy(float).T.reshape(-1, texts)
    ]
    value, drawn = whole if not means else (whole[i] / means[0][i] for i in (0, 1))
    return value, *np.quantile(drawn, [0.025, 0.975]), texts


@cache
def rows(run: str) -> pd.DataFrame:
    return pd.read_parquet(RESULTS / run / "rows.parquet")


def pearson(first, second, counted=slice(None)) -> float:
    first, second = (np.asarray(scores, float)[counted] for scores in (first, second))
    first, second = first - first.mean(), second - second.mean()
    size = np.sqrt((first @ first) * (second @ second))
    return first @ second / size if size else np.nan


# --- recorded texts: results/sst, results/imdb


def mean(run, method, readout, column):
    found = rows(run)
    found = found[(found.family == "") & (found.method == method) & (found.readout == readout)]
    return found.set_index("id")[column].astype(float)


def gap(run, first, second, readout, column):
    return mean(run, first, readout, column) - mean(run, second, readout, column)


def ratio(run, first, second, column):
    return mean(run, first, "word", column), mean(run, second, "word", column)


def halves(run, readout, column):
    """CP's rule in the later half of the layers, less the same in the earlier half."""
    found = rows(run)
    found = found[found.readout == readout].set_index("id")
    half = found.layer.max() // 2
    back = found[(found.family == "back") & (found.layer == half + 1)][column]
    return back.astype(float) - found[(found.family == "front") & (found.layer == half)][column]


def accuracy(run):
    texts = rows(run).drop_duplicates("id").set_index("id")
    return (texts.target == texts.label).astype(float)


def longer(long, short):
    means = [rows(run).groupby("id").tokens.first().mean() for run in (long, short)]
    return means[0] / means[1]


def enough(run, first, second, rivals):
    """How many texts decide between two methods: (z + z of a power of 80%)² s² / mean²."""
    found = gap(run, first, second, "word", "r_content").dropna()
    z = NormalDist().inv_cdf(1 - 0.025 / int(rivals)) + NormalDist().inv_cdf(0.8)
    return ceil((z * found.std() / found.mean()) ** 2)


# --- recorded maps: results/maps, controls, canon, remedy


@cache
def maps(run, method, readout="", removal="") -> pd.Series:
    found = rows(run)
    found = found[(found.method == method) & (found.rules == "") & (found.removal == removal)]
    found = found if method in ("loo", "mask-gradient") else found[found.readout == readout]
    return found.drop_duplicates("id").set_index("id").scores


def content(run) -> pd.Series:
    return rows(run).drop_duplicates("id").set_index("id").content


@cache
def tracking(run, method, readout, tokens, removal="attention-mask", kind=None, unit=False):
    """Pearson's r with LOO of a map in `results/KIND`, by text; `unit`: after sum-to-one."""
    name = run.split("/")[1]
    known = maps(f"maps/{name}", "loo", removal=removal)
    found, counts = maps(f"{kind or 'maps'}/{name}", method, readout), content(f"maps/{name}")
    r = {}
    for text, scores in found.items():
        own = counts[text] if tokens == "words" else np.ones_like(counts[text])
        sign = np.sign(scores[own].sum() * known[text][own].sum()) if unit else 1
        r[text] = pearson(scores, known[text], own) * sign
    return pd.Series(r)


def level(run, method, readout, tokens, kind="maps"):
    return tracking(run, method, readout, tokens, kind=kind)


def unit_level(run, method, readout):
    return tracking(run, method, readout, "all", unit=True)


def lead(run, first, second, removal):
    return tracking(run, first, "word", "words", removal) - tracking(
        run, second, "word", "words", removal
    )


@cache
def estimated(run, setting, tokens):
    """r with LOO of an estimate of removal, or of a map at the word embeddings, on its texts."""
    found, known = rows(f"remedy/{run}"), maps(f"maps/{run}", "loo", removal="attention-mask")
    texts = found.drop_duplicates("id").set_index("id").content
    scores = found[found.setting == setting].set_index("id").scores
    if scores.empty:
        scores = maps(f"maps/{run}", setting, "word")[texts.index]
    every = {i: texts[i] if tokens == "words" else slice(None) for i in texts.index}
    return pd.Series({i: pearson(scores[i], known[i], every[i]) for i in texts.index})


def closer(run, setting, other, tokens):
    return estimated(run, setting, tokens) - estimated(run, other, tokens)


def closer_than_map(run, setting, method, readout):
    return (
        estimated(run, setting, "all") - tracking(f"maps/{run}", method, readout, "all")
    ).dropna()


def closer_share(setting):
    """Share of runs, maps and read-outs where an estimate of removal is closer for certain."""
    runs = ("minilm-sst2", "mpnet-sst2", "minilm-imdb", "mpnet-imdb")
    every = product(runs, ("attnlrp", "cp-lrp"), ("word", "sum", "post-norm"))
    return 100 * np.mean(
        [estimate(closer_than_map(r, setting, m, at))[1] > 0 for r, m, at in every]
    )


def first_token(run, method, readout, kind="maps"):
    """[CLS]'s score as a share of all |scores|."""
    removal = "attention-mask" if method == "loo" else ""
    found = maps(f"{kind}/{run}", method, readout, removal)
    return found.map(lambda scores: scores[0] / np.abs(scores).sum())


@cache
def between_removals() -> list[float]:
    """Mean r of each two removals' LOO, of all tokens, on both models."""
    removals, means = ("attention-mask", "mask", "pad", "unk", "zero", "delete"), []
    for run in ("maps/minilm-sst2", "maps/mpnet-sst2"):
        loo = {name: maps(run, "loo", removal=name) for name in removals}
        for one, two in combinations(loo.values(), 2):
            means.append(np.nanmean([pearson(one[i], two[i]) for i in one.index]))
    return means


def between(pick):
    return {"least": min, "most": max}[pick](between_removals())


# --- all conventions at once, on both models of SST-2


@cache
def specifications(first: str, second: str) -> pd.DataFrame:
    """Ends of the interval of r(first) − r(second) with LOO under each specification."""
    parts = {}
    for run in ("minilm-sst2", "mpnet-sst2"):
        found = rows(f"maps/{run}")
        loo, found = found[found.method == "loo"], found[found.rules != "norm=gradient"]
        one, two = (
            found[found.method == m].set_index(["rules", "readout"]) for m in (first, second)
        )
        places = one.index.unique().intersection(two.index.unique())
        kept = pd.concat([loo, *(part.loc[places].reset_index() for part in (one, two))])
        r = [
            _text(np.stack(part.scores).astype(float), part.content.iloc[0], len(places))
            for _, part in kept.groupby("id", sort=False)
        ]
        gaps = np.stack(r)
        draws = np.random.default_rng(0).multinomial(len(r), np.full(len(r), 1 / len(r)), 1000)
        draws = draws.astype(float)
        means = draws @ np.nan_to_num(gaps) / (draws @ (~np.isnan(gaps)).astype(float))
        low, high = np.quantile(means, [0.025, 0.975], axis=0)
        every = product(_TOKENS, _VIEWS, ("raw", "unit"), loo.removal.unique(), places)
        every = [(*choice, *place) for *choice, place in every]
        parts[run] = pd.DataFrame({"low": low, "high": high}, pd.MultiIndex.from_tuples(every))
    names = ["run", "tokens", "coefficient", "normalisation", "removal", "rules", "readout"]
    return pd.concat(parts).rename_axis(names).reset_index()


_TOKENS = {  # which tokens count, from the mask of those that are no special ones
    "all": lambda words: words | True,
    "no [CLS]": lambda words: np.r_[words[:1], words[1:] | True],
    "no [SEP]": lambda words: np.r_[words[:-1] | True, words[-1:]],
    "words": lambda words: words,
}
_VIEWS = {
    "Pearson": lambda maps: maps - maps.mean(1, keepdims=True),
    "Spearman": lambda maps: rankdata(maps, axis=1) - (maps.shape[1] + 1) / 2,
    "Kendall": lambda maps: _signs(maps, *np.triu_indices(maps.shape[1], 1)),
}


def _signs(maps: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    maps = maps.astype(np.float32)  # as recorded: equal stays equal
    return np.sign(maps[:, first] - maps[:, second])


def _text(maps: np.ndarray, words: np.ndarray, places: int) -> np.ndarray:
    """One text's differences: LOO's maps come first, then one method's, then the other's."""
    found, removals = [], len(maps) - 2 * places
    for counted in _TOKENS.values():
        own = maps[:, counted(words)]
        sign = np.sign(own.sum(axis=1))
        for view in _VIEWS.values():
            unit = view(own)
            unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
            r = unit[:removals] @ unit[removals:].T
            divided = r * np.outer(sign[:removals], sign[removals:])
            found += [(x[:, :places] - x[:, places:]).ravel() for x in (r, divided)]
    return np.concatenate(found)


def share(first, second, side, place="anywhere"):
    """Percentage of specifications whose interval is above zero, or below."""
    found = specifications(first, second)
    own, raw = found.rules == "", found.normalisation == "raw"
    behind = found.readout.isin(["sum", "post-norm"]) & found.tokens.isin(["all", "no [SEP]"])
    where = {
        "anywhere": own | True,
        "raw-without-cls": own & raw & found.tokens.isin(["no [CLS]", "words"]),
        "behind-with-cls": own & behind,
        "own-rules-elsewhere": own & ~behind,
    }
    found = found[where[place]]
    return 100 * np.mean(found.low > 0 if side == "above" else found.high < 0)


def count(first, second):
    return len(specifications(first, second))


# --- results/refactored, softmax, patching, yardstick, mnist, bench


def form(run, number, column):
    found = rows(f"refactored/{run}")
    return found[found.form == found.form.unique()[int(number)]].set_index("id")[column]


def later(run, column):
    """Mean over the later half of the layers, less that over the earlier half."""
    found = rows(f"softmax/{run}").pivot(index="id", columns="layer", values=column).astype(float)
    half = found.shape[1] // 2
    return found.iloc[:, half:].mean(axis=1) - found.iloc[:, :half].mean(axis=1)


def patched(run, site, source, first, second):
    """r of a backward pass's estimates with the effects, less that of another, by text."""
    found = rows(f"patching/{run}")
    parts = found[(found.site == site) & (found.source == source.replace("-", " "))].groupby("id")
    r = {i: [pearson(part[m], part.effect) for m in (first, second)] for i, part in parts}
    return pd.DataFrame(r).T.pipe(lambda r: r[0] - r[1])


@cache
def yardsticks(run) -> dict[str, dict[str, np.ndarray]]:
    """Text → maps by name, with `half`, ½ Σ_j I_ij, and `pairs`, LOO + ½ Σ_j I_ij."""
    found = {}
    for text, part in rows(f"yardstick/{run}").groupby("id", sort=False):
        known = {m: np.asarray(s, float) for m, s in zip(part.method, part.scores, strict=True)}
        both = np.zeros((len(known["loo"]),) * 2)
        both[np.triu_indices(len(both), 1)] = known["interactions"]
        half = (both + both.T).sum(axis=1) / 2
        found[text] = {**known, "half": half, "pairs": known["loo"] + half}
    return found


def yard(run, yardstick, method, other=""):
    """r of a method with a yardstick, or by how much it is above another method's."""
    found = yardsticks(run).items()
    first = pd.Series({i: pearson(known[method], known[yardstick]) for i, known in found})
    if not other:
        return first
    return first - pd.Series({i: pearson(known[other], known[yardstick]) for i, known in found})


def partial(run, method):
    """Partial correlation of a map with ½ Σ_j I_ij, LOO held fixed; texts of five tokens up."""
    found = {}
    for text, known in yardsticks(run).items():
        if len(known["loo"]) >= 5:
            xy, xz = (pearson(known[method], known[m]) for m in ("half", "loo"))
            yz = pearson(known["half"], known["loo"])
            found[text] = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    return pd.Series(found)


def mnist(setting, removal, pair):
    """Mean r after sum-to-one over training seeds and images; "lowest": over all readings."""
    found = rows("mnist/linear-attention")
    found = found[found.pair == pair.replace("_", " ")]
    found = found.assign(r=found.r.astype(float) * np.where(found.flipped, -1, 1))
    means = found.groupby(["setting", "removal"], observed=True).r.mean()
    return means.min() if setting == "lowest" else means[setting, removal]


@cache
def bench(group) -> pd.DataFrame:
    told = json.loads((RESULTS / "bench/untrained-6x384/bench.json").read_text(encoding="utf-8"))
    return pd.DataFrame(told["groups"][group]["rows"])


def times(group, side):
    """The other side's time over ours, with the extremes of the turns; "last": the last side."""
    found = bench(group).set_index("side")
    found = found.iloc[-1] if side == "last" else found.loc[side.replace("_", " ")]
    return found.ratio, found.low, found.high


def products(kind):
    """Share of LOO's time that goes into matrix products."""
    found = bench("time")
    found = found[found.texts.str.startswith(kind)].set_index("part").seconds
    return found["matrix products"] / found.sum()


# --- chapter 1, without data


def trees(factors):
    return comb(2 * int(factors) - 2, int(factors) - 1) // int(factors)


def shares_apart(factors):
    """Largest over smallest share that halving at each product can give one of the factors."""
    return 2 ** (int(factors) - 2)
