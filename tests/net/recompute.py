"""Headline values from `results/` once more, by numpy, scipy and pandas: nothing of `lrputils`.

Each function takes the words behind its name in the last column of `numbers.csv`. It returns a
value a text, whose mean is compared, a pair of them, whose ratio of means is, or one number.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
from scipy.stats import rankdata, skew, t

RESULTS = Path(__file__).resolve().parents[2] / "results"


def estimate(
    values: pd.Series, per: pd.Series | None = None, *, paired: bool = False
) -> tuple[float, float, float, int]:
    """Mean over texts (of `per`: the ratio of means), 95% interval, number of texts.

    Of paired differences the interval is Student's, of a share of zeros and ones Wilson's, of a
    level Hall's (Student's, corrected for skewness), of a ratio a percentile bootstrap's.
    """
    kept = (values if per is None else pd.concat([values, per], axis=1)).dropna().to_numpy(float)
    if per is not None:
        return *_ratio(*kept.T), len(kept)
    ends = student if paired else wilson if np.isin(kept, (0, 1)).all() else hall
    return kept.mean(), *ends(kept), len(kept)


def student(values: np.ndarray) -> tuple[float, float]:
    n, mean = len(values), values.mean()
    reach = t.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n)
    return mean - reach, mean + reach


def hall(values: np.ndarray) -> tuple[float, float]:
    """Hall (1992): t + a t² / √n + a² t³ / 3n + a / 2√n, a a third of the skewness, inverted."""
    n, error = len(values), values.std(ddof=1) / np.sqrt(len(values))
    a = skew(values) / 3
    high, low = t.ppf([0.025, 0.975], n - 1)
    if abs(a) / np.sqrt(n) > 1e-7:
        bent = 1 + 3 * a * (np.array([high, low]) / np.sqrt(n) - a / (2 * n))
        high, low = (np.cbrt(bent) - 1) * np.sqrt(n) / a
    return values.mean() - low * error, values.mean() - high * error


def wilson(values: np.ndarray) -> tuple[float, float]:
    n, z, share = len(values), NormalDist().inv_cdf(0.975), values.mean()
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return centre - reach, centre + reach


def _ratio(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    draws = np.random.default_rng(1).integers(len(first), size=(50_000, len(first)))
    drawn = first[draws].mean(axis=1) / second[draws].mean(axis=1)
    return first.mean() / second.mean(), *np.quantile(drawn, [0.025, 0.975])


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


def ratio(run, first, second, column):
    return mean(run, first, "word", column), mean(run, second, "word", column)


def half(run, family, readout, column):
    """CP's rule in the layers of the earlier half ("front") or of the later one ("back")."""
    found = rows(run)
    found = found[(found.readout == readout) & (found.family == family)].set_index("id")
    edge = rows(run).layer.max() // 2 + (family == "back")
    return found[found.layer == edge][column].astype(float)


def enough(run, first, second):
    """The least n, from 20, at which a lead shows in 80% of draws: of the mean with one text more
    at −1, and of the share against one half."""
    one, two = (mean(run, method, "word", "r_content") for method in (first, second))
    found, z = (one - two).dropna(), NormalDist().inv_cdf
    d, p, n = found.mean(), (found > 0).mean(), 20
    while True:
        error = (found.var() / n + ((1 + d) / (n + 1)) ** 2) ** 0.5
        seen = (n * d - 1) / (n + 1) >= (t.ppf(0.975, n - 1) + z(0.8)) * error
        if seen and (p - 0.5) * n**0.5 >= z(0.975) / 2 + z(0.8) * (p * (1 - p)) ** 0.5:
            return n
        n += 1


# --- recorded maps: results/maps, canon, remedy


@cache
def maps(run, method, readout="", removal="") -> pd.Series:
    found = rows(run)
    found = found[(found.method == method) & (found.options == "") & (found.removal == removal)]
    found = found if method in ("loo", "mask-gradient") else found[found.readout == readout]
    return found.drop_duplicates("id").set_index("id").scores


def content(run) -> pd.Series:
    return rows(run).drop_duplicates("id").set_index("id").content


@cache
def tracking(run, method, readout, tokens, unit=False):
    """Pearson's r with LOO of a recorded map, by text; if `unit`, after sum-to-one."""
    recorded = f"maps/{run.split('/')[1]}"
    known = maps(recorded, "loo", removal="attention-mask")
    found, counts = maps(run, method, readout), content(recorded)
    r = {}
    for text, scores in found.items():
        own = _TOKENS[tokens.replace("-", " ")](counts[text])
        sign = np.sign(scores[own].sum() * known[text][own].sum()) if unit else 1
        r[text] = pearson(scores, known[text], own) * sign
    return pd.Series(r)


@cache
def priced(run, setting):
    """r with LOO over own tokens, on each text that has the estimate in `remedy` or `gradients`.

    "half" is half of LOO's passes on sentences: one-pass, and exact scores where it is largest.
    """
    known = maps(f"maps/{run}", "loo", removal="attention-mask")
    own, one = content(f"maps/{run}"), maps(f"maps/{run}", "mask-gradient")
    both = pd.concat([rows(f"remedy/{run}"), rows(f"gradients/{run}")])
    both = both[(both.method == "mask-gradient") & (both.options == "groups=2")]
    halves = both.drop_duplicates("id").set_index("id").scores
    found = {}
    for i in known.index if setting in ("one-pass", "half") else halves.index:
        loo, words = np.array(known[i]), np.array(own[i])
        scores = np.array(halves[i] if setting == "halves" else one[i])
        if setting == "one+halves":
            scores = sum(x / np.abs(x[words]).mean() for x in (scores, np.array(halves[i])))
        if setting == "half":
            assert len(loo) <= 64
            exact = np.argsort(-np.abs(scores) * words, kind="stable")
            exact = exact[: max(0, len(loo) // 2 - 3)]
            scores[exact] = loo[exact]
        found[i] = pearson(scores, loo, words)
    return pd.Series(found)


_ESTIMATES = {"one-pass": "", "halves": "groups=2", "sum": "groups=2, with_open=True"}


def curve(run, variant):
    """Δ along the curves of an estimate of removal, by text."""
    found = rows(f"estimates/{run}")
    found = found[(found.method == "mask-gradient") & (found.options == _ESTIMATES[variant])]
    return found.set_index("id").delta


# --- all conventions at once, on both models of SST-2


def share_at_once(first, second, side):
    """Percentage of the specifications of both models in which a method is higher, all at once.

    Ends of intervals that hold for all specifications of a model together (max-t).
    """
    generator, found = np.random.default_rng(0), []
    for run in ("minilm-sst2", "mpnet-sst2"):
        gaps = differences(run, first, second)
        n, apart = len(gaps), gaps - gaps.mean(axis=0)
        drawn = generator.multinomial(n, np.full(n, 1 / n), 10_000)
        moved = drawn @ apart / n
        spread = np.sqrt(drawn @ apart**2 / n - moved**2)
        reach = np.quantile(np.abs(moved / spread).max(axis=1), 0.95) * gaps.std(axis=0)
        sign = 1 if side == "above" else -1
        found.append(sign * gaps.mean(axis=0) > reach)
    return 100 * np.mean(found)


def differences(run, first, second) -> np.ndarray:
    """r(first) − r(second) with LOO: a row a text, a column a specification, own rules."""
    found = rows(f"maps/{run}")
    found = found[found.options == ""]
    loo, one, two = (found[found.method == name] for name in ("loo", first, second))
    places = one.readout.unique()
    two = two.set_index("readout").loc[places].reset_index()
    kept = pd.concat([loo, one, two])
    return np.stack(
        [
            _text(np.stack(part.scores).astype(float), part.content.iloc[0], len(places))
            for _, part in kept.groupby("id", sort=False)
        ]
    )


_TOKENS = {  # which tokens count, from the mask of those that are no special ones
    "all": lambda words: words | True,
    "no CLS": lambda words: np.r_[words[:1], words[1:] | True],
    "no SEP": lambda words: np.r_[words[:-1] | True, words[-1:]],
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


# --- results/refactored, patching, yardstick


def form(run, number, column):
    found = rows(f"refactored/{run}")
    return found[found.form == found.form.unique()[int(number)]].set_index("id")[column]


def patched(run, site, source, method):
    """r of a backward pass's estimates with the effects, by text."""
    found = rows(f"patching/{run}")
    parts = found[(found.site == site) & (found.source == source.replace("-", " "))].groupby("id")
    return pd.Series({i: pearson(part[method], part.effect) for i, part in parts})


@cache
def yardsticks(run) -> dict[str, dict[str, np.ndarray]]:
    """Text → maps by name, with `half`, ½ Σ_j I_ij."""
    found = {}
    for text, part in rows(f"yardstick/{run}").groupby("id", sort=False):
        known = {m: np.asarray(s, float) for m, s in zip(part.method, part.scores, strict=True)}
        both = np.zeros((len(known["loo"]),) * 2)
        both[np.triu_indices(len(both), 1)] = known["interactions"]
        found[text] = {**known, "half": (both + both.T).sum(axis=1) / 2}
    return found


def yard(run, yardstick, method):
    """r of a method with a yardstick, on texts of three tokens or more that have it."""
    found = {i: known for i, known in yardsticks(run).items() if yardstick in known}
    found = {i: known for i, known in found.items() if len(known[yardstick]) > 2}
    return pd.Series({i: pearson(k[method], k[yardstick]) for i, k in found.items()})


def partial(run, method):
    """Partial correlation of a map with ½ Σ_j I_ij, LOO held fixed; texts of five tokens up."""
    found = {}
    for text, known in yardsticks(run).items():
        if len(known["loo"]) >= 5:
            xy, xz = (pearson(known[method], known[m]) for m in ("half", "loo"))
            yz = pearson(known["half"], known["loo"])
            found[text] = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    return pd.Series(found)


# --- results/epsilon, uniform, layer_pairs, bench


def stable(run, method, epsilon):
    found = rows(f"epsilon/{run}")
    found = found[(found.method == method) & (found.readout == "word")]
    return found[found.epsilon == float(epsilon)].set_index("id").r.astype(float)


def even(run, part):
    """Accuracy with uniform attention in a part of the layers."""
    found = rows(f"uniform/{run}")
    found = found[found.part == part.replace("_", " ")].set_index("id")
    return (found.predicted == found.label).astype(float)


def pairs_share(run, half):
    """Mean share of the interactions that a layer of one half adds."""
    found = rows(f"layer_pairs/{run}").pivot(
        index=["id", "i", "j"], columns="layer", values="interaction"
    )
    adds = -np.diff(found.to_numpy(float), axis=1, append=0)
    sizes = pd.DataFrame(np.abs(adds), found.index).groupby(level="id").mean()
    shares, middle = sizes.div(sizes.sum(axis=1), axis=0), sizes.shape[1] // 2
    return (shares.iloc[:, :middle] if half == "earlier" else shares.iloc[:, middle:]).mean(axis=1)


@cache
def bench(group, run="untrained-6x384") -> pd.DataFrame:
    told = json.loads((RESULTS / f"bench/{run}/bench.json").read_text(encoding="utf-8"))
    return pd.DataFrame(told["groups"][group]["rows"])


def in_maps(run, kind):
    """Seconds of leave-one-out over those of one AttnLRP map."""
    found = bench("methods", run)
    found = found[found.texts.str.startswith(kind)].set_index("method").seconds
    return found["loo"] / found["attnlrp"]


def times(group, side):
    """The other side's time over ours, with the extremes of the turns; "last": the last side."""
    found = bench(group).set_index("side")
    found = found.iloc[-1] if side == "last" else found.loc[side.replace("_", " ")]
    return found.ratio, found.low, found.high


# --- chapter 1, without data


def shares_apart(factors):
    """Largest over smallest share that halving at each product can give one of the factors."""
    return 2 ** (int(factors) - 2)


# --- a language model: results/prompted


@cache
def prompted(run) -> pd.DataFrame:
    """The maps of the difference of two labels' logits, (text, method), and each text's tokens."""
    kept = rows(f"prompted/{run}")
    kept = kept[(kept.output == "difference") & (kept.options == "")]
    return kept.pivot(index="id", columns="method", values="scores").join(
        kept.groupby("id").content.first()
    )


def said(run, method) -> pd.Series:
    return prompted(run).apply(
        lambda text: pearson(text[method], text["loo"], np.array(text.content, bool)), axis=1
    )


@cache
def answered(run, method, passes=0) -> pd.Series:
    """The scores of each text's own sentences."""
    method, options = ("mask-gradient", "groups=2") if method == "halves" else (method, "")
    kept = rows(f"answers/{run}")
    kept = kept[(kept.method == method) & (kept.options == options)]
    kept = kept[kept.passes == int(passes)].set_index("id")
    return kept.apply(lambda text: np.asarray(text.scores)[np.array(text.own, bool)], axis=1)


def sentences(run, method, passes=0):
    both = pd.DataFrame({"map": answered(run, method, passes), "loo": answered(run, "loo")})
    said = rows(f"answers/{run}")
    told = said[said.length <= 40].id.unique()  # else read back as other tokens than it was said in
    both = both[both.index.isin(told)]
    return both.apply(lambda text: pearson(text["map"], text["loo"]), axis=1)
