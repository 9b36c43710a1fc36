"""Headline values from `results/` once more, by numpy, scipy and pandas: nothing of `lrputils`.

Each function takes the words behind its name in the last column of `numbers.csv`. It returns a
value a text, whose mean is compared, a pair of them, whose ratio of means is, or one number.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations, product
from math import comb
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


def student(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the mean's interval; of each column, where a missing value is NaN."""
    n, mean = np.isfinite(values).sum(axis=0), np.nanmean(values, axis=0)
    reach = t.ppf(0.975, n - 1) * np.nanstd(values, axis=0, ddof=1) / np.sqrt(n)
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


def accuracy(run):
    texts = rows(run).drop_duplicates("id").set_index("id")
    return (texts.target == texts.label).astype(float)


def longer(long, short):
    means = [rows(run).groupby("id").tokens.first().mean() for run in (long, short)]
    return means[0] / means[1]


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
def tracking(run, method, readout, tokens, removal="attention-mask", unit=False):
    """Pearson's r with LOO of a recorded map, by text; if `unit`, after sum-to-one."""
    recorded = f"maps/{run.split('/')[1]}"
    known = maps(recorded, "loo", removal=removal)
    found, counts = maps(run, method, readout), content(recorded)
    r = {}
    for text, scores in found.items():
        own = _TOKENS[tokens.replace("-", " ")](counts[text])
        sign = np.sign(scores[own].sum() * known[text][own].sum()) if unit else 1
        r[text] = pearson(scores, known[text], own) * sign
    return pd.Series(r)


@cache
def estimates(run, setting) -> pd.Series:
    """Maps of an estimate of removal, or at the word embeddings of a method, by text.

    "one+halves" is a sum of two, each divided by its mean |score| over the text's own tokens.
    """
    found = rows(f"remedy/{run}")
    if "+" in setting:
        one, other = (_at_one_size(estimates(run, name), run) for name in ("one-pass", "halves"))
        return one + other
    scores = found[found.setting == setting].set_index("id").scores
    return maps(f"maps/{run}", setting, "word")[found.id.unique()] if scores.empty else scores


def _at_one_size(scores: pd.Series, run) -> pd.Series:
    own = content(f"remedy/{run}")
    sized = {i: found / np.abs(found[own[i]]).mean() for i, found in scores.items()}
    return pd.Series(sized)


@cache
def estimated(run, setting, tokens, coefficient="pearson"):
    """r (or Spearman's) of an estimate of removal with LOO, on its texts."""
    known = maps(f"maps/{run}", "loo", removal="attention-mask")
    own, found = content(f"remedy/{run}"), {}
    for i, scores in estimates(run, setting).items():
        both = [x[own[i] if tokens == "words" else slice(None)] for x in (scores, known[i])]
        found[i] = pearson(*(both if coefficient == "pearson" else map(rankdata, both)))
    return pd.Series(found)


@cache
def priced(run, setting):
    """r with LOO over own tokens, on each text that has the estimate in `remedy` or `gradients`.

    "half" is half of LOO's passes on sentences: one-pass, and exact scores where it is largest.
    """
    known = maps(f"maps/{run}", "loo", removal="attention-mask")
    own, one = content(f"maps/{run}"), maps(f"maps/{run}", "mask-gradient")
    first, later = rows(f"remedy/{run}"), rows(f"gradients/{run}")
    first, later = first[first.setting == "halves"], later[later.groups == 2]
    halves = pd.concat([first, later]).drop_duplicates("id").set_index("id").scores
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


def curve(run, variant):
    """Δ along the curves of an estimate of removal, by text."""
    found = rows(f"estimates/{run}")
    return found[found.variant == variant].set_index("id").delta


def closer_share(setting):
    """Share of runs, maps and read-outs where an estimate of removal is closer for certain."""
    runs = ("minilm-sst2", "mpnet-sst2", "minilm-imdb", "mpnet-imdb")
    every = product(runs, ("attnlrp", "cp-lrp"), ("word", "sum", "post-norm"))
    gaps = (
        estimated(r, setting, "all") - tracking(f"maps/{r}", method, readout, "all")
        for r, method, readout in every
    )
    return 100 * np.mean([estimate(gap, paired=True)[1] > 0 for gap in gaps])


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
def differences(first: str, second: str) -> dict[str, pd.DataFrame]:
    """Model → r(first) − r(second) with LOO: a row a text, a column a specification."""
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
        every = product(_TOKENS, _VIEWS, ("raw", "unit"), loo.removal.unique(), places)
        every = [(*choice, *place) for *choice, place in every]
        names = ["tokens", "coefficient", "normalisation", "removal", "rules", "readout"]
        parts[run] = pd.DataFrame(
            np.stack(r), columns=pd.MultiIndex.from_tuples(every, names=names)
        )
    return parts


@cache
def specifications(first: str, second: str) -> pd.DataFrame:
    """Ends of the interval of r(first) − r(second) with LOO under each specification."""
    found = {}
    for run, gaps in differences(first, second).items():
        low, high = student(gaps.to_numpy())
        found[run] = pd.DataFrame({"low": low, "high": high}, gaps.columns)
    return pd.concat(found, names=["run"]).reset_index()


@cache
def together(first: str, second: str) -> pd.DataFrame:
    """Ends of intervals that hold for all specifications of a model at once, own rules (max-t)."""
    generator, found = np.random.default_rng(0), []
    for gaps in differences(first, second).values():
        gaps = gaps.loc[:, gaps.columns.get_level_values("rules") == ""].to_numpy()
        n, apart = len(gaps), gaps - gaps.mean(axis=0)
        drawn = generator.multinomial(n, np.full(n, 1 / n), 10_000)
        moved = drawn @ apart / n
        spread = np.sqrt(drawn @ apart**2 / n - moved**2)
        reach = np.quantile(np.abs(moved / spread).max(axis=1), 0.95) * gaps.std(axis=0)
        found.append(gaps.mean(axis=0) + np.outer([-1, 1], reach))
    return pd.DataFrame(np.hstack(found).T, columns=["low", "high"])


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


def share(first, second, side, place="anywhere"):
    """Percentage of specifications whose interval is above zero, or below."""
    found = specifications(first, second)
    own, raw = found.rules == "", found.normalisation == "raw"
    recipe = own & found.readout.isin(["sum", "post-norm"]) & (found.tokens == "all")
    usual = (found.removal == "attention-mask") & (found.coefficient == "Pearson")
    where = {
        "anywhere": own | True,
        "own-rules": own,
        "raw-without-cls": own & raw & found.tokens.isin(["no CLS", "words"]),
        "recipe": recipe,
        "recipe-usual": recipe & usual,
    }
    found = found[where[place]]
    return 100 * np.mean(found.low > 0 if side == "above" else found.high < 0)


def share_at_once(first, second, side):
    found = together(first, second)
    return 100 * np.mean(found.low > 0 if side == "above" else found.high < 0)


def count(first, second):
    return (specifications(first, second).rules == "").sum()


# --- results/refactored, softmax, patching, yardstick, mnist, bench


def form(run, number, column):
    found = rows(f"refactored/{run}")
    return found[found.form == found.form.unique()[int(number)]].set_index("id")[column]


def layers_mean(run, half, column):
    found = rows(f"softmax/{run}").pivot(index="id", columns="layer", values=column)
    return _half_of_layers(found.astype(float), half)


def _half_of_layers(found: pd.DataFrame, half) -> pd.Series:
    """Mean over the columns of the earlier half or of the later one."""
    middle = found.shape[1] // 2
    return found.iloc[:, slice(middle) if half == "earlier" else slice(middle, None)].mean(axis=1)


def patched(run, site, source, method):
    """r of a backward pass's estimates with the effects, by text."""
    found = rows(f"patching/{run}")
    parts = found[(found.site == site) & (found.source == source.replace("-", " "))].groupby("id")
    return pd.Series({i: pearson(part[method], part.effect) for i, part in parts})


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


def mnist(run, setting, removal, pair):
    """Mean r after sum-to-one over training seeds and images; "lowest": over all readings."""
    found = rows(f"mnist/{run}")
    found = found[found.pair == pair.replace("_", " ")]
    found = found.assign(r=found.r.astype(float) * np.where(found.flipped, -1, 1))
    means = found.groupby(["setting", "removal"], observed=True).r.mean()
    return means.min() if setting == "lowest" else means[setting, removal]


def epsilon_of_images(pair):
    """Lowest mean r of any network's map at ε = 0.01 with that at ε = 0."""
    found = rows("mnist/epsilon")
    return found[(found.pair == pair.replace("_", " ")) & (found.epsilon == 0.01)].r.min()


def gradients_of_images(pair):
    """Lowest r after sum-to-one, over networks of enough accuracy, baselines and removals."""
    found = rows("mnist/ig")
    kept = ~found.setting.astype(str).str.startswith("none-mean")
    return found[kept & (found.pair == pair.replace("_", " "))].r_normalised.min()


def curves_of_images(setting, first, second):
    """Δ of one method's curves less that of another's by image, zero removed; of LOO's mean Δ."""
    found = rows("mnist/curves")
    found = found[(found.setting == setting) & (found.removal == "zero")]
    delta = (found.lerf - found.morf).astype(float)
    delta = found.assign(delta=delta).pivot(index="id", columns="method", values="delta")
    return (delta[first] - delta[second]) / delta["LOO"].mean()


# --- results/random_weights, epsilon, uniform, layer_pairs


def drawn(run, layers, method, column):
    """With LOO of a model whose last layers' weights are drawn anew: "head", "all layers", …"""
    found = rows(f"random_weights/{run}")
    part = found.randomised.str.split(", ").str[-1] == layers.replace("_", " ")
    return found[part & (found.method == method)].set_index("id")[column]


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
    return _half_of_layers(sizes.div(sizes.sum(axis=1), axis=0), half)


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


# --- a language model: results/prompted


@cache
def prompted(run) -> pd.DataFrame:
    """The maps of the difference of two labels' logits, (text, method), and each text's tokens."""
    kept = rows(f"prompted/{run}")
    kept = kept[kept.output == "difference"]
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
    kept = rows(f"answers/{run}")
    kept = kept[(kept.method == method) & (kept.passes == int(passes))].set_index("id")
    return kept.apply(lambda text: np.asarray(text.scores)[np.array(text.own, bool)], axis=1)


def sentences(run, method, passes=0):
    both = pd.DataFrame({"map": answered(run, method, passes), "loo": answered(run, "loo")})
    said = rows(f"answers/{run}")
    told = said[said.length <= 40].id.unique()  # else read back as other tokens than it was said in
    both = both[both.index.isin(told)]
    return both.apply(lambda text: pearson(text["map"], text["loo"]), axis=1)
