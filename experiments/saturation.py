"""Recorded paths to leave-one-out, token by token, and exact passes by the size of f.

How the paths are recorded is in `experiments.recordings.saturation`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments import frame, price
from lrputils import stats
from lrputils.runs.results import load
from lrputils.stats import Array
from lrputils.study.agreement import over_texts

_MAPS = {"loo": "loo", "mask-gradient": "gradient", "attnlrp": "attnlrp"}


def read_paths(run: str) -> pd.DataFrame:
    """Return a row a hidden token and degree of a run of `results/saturation`.

    Returns:
        `id`; `logit`, the size of f, and its `quarter` among the run's texts, 1 to 4; `token`,
        its place; `degree`, and `lost` when the token is hidden by it; its scores `loo`,
        `gradient` and `attnlrp`; `top`, whether its leave-one-out is the largest in size.
    """
    texts = load("saturation", run).rows
    texts = texts.assign(id=texts.id.astype(str), token=texts.content.map(lambda c: range(len(c))))
    ranks = texts.logit.rank(method="dense")
    texts["quarter"] = np.ceil(4 * ranks / ranks.max()).astype(int)
    texts = texts.rename(columns={"scores": "lost"}).join(read_scores(run), on="id")
    each = ["token", "lost", *_MAPS.values()]
    tokens = texts[["id", "logit", "quarter", "degree", *each]].explode(each, ignore_index=True)
    tokens = tokens.astype(dict.fromkeys(each, float)).dropna(subset="lost")
    size = tokens.loo.abs()
    return tokens.assign(top=size == size.groupby([tokens.id, tokens.degree]).transform("max"))


def lost_by_degree(run: str) -> dict[str, pd.DataFrame]:
    """Return the share of leave-one-out that is lost by degree, medians over texts with intervals.

    They are those of the top word and of the other words, in the quarters of the texts with the
    smallest and the largest f, by a name of each.
    """
    paths = read_paths(run)
    share = (paths.lost / paths.loo).rename("share")
    share = share.groupby([paths[k] for k in ("top", "quarter", "id", "degree")]).median()
    found = {}
    for top, word in {True: "top word", False: "other words"}.items():
        for quarter, sureness in {1: "unsure", 4: "sure"}.items():
            part = share.loc[top, quarter].reset_index()
            found[f"{word}, {sureness}"] = over_texts(part, "degree", "share", statistic=np.median)
    return found


def read_scores(run: str) -> pd.DataFrame:
    """Return a run's recorded maps, a row a text: `loo`, `gradient` and `attnlrp` at the words.

    They are those of `results/maps`, a language model's of `results/prompted`.
    """
    if run in frame.RUNS:
        maps = frame.read_maps("maps", runs=[run]).query("rules == ''")
    else:
        maps = load("prompted", run).rows.assign(readout="").query("output == 'difference'")
    maps = maps[maps.method.isin([*_MAPS]) & maps.readout.isin(["", "word"])]
    maps = maps[maps.removal.isin(["", "attention-mask"])]
    maps = maps.assign(id=maps.id.astype(str)).pivot(index="id", columns="method", values="scores")
    return maps.rename(columns=_MAPS)


def compare_texts(paths: pd.DataFrame) -> pd.DataFrame:
    """Return a row a text of `read_paths`: what its hidden tokens' scores have of leave-one-out.

    Returns:
        `id`, `logit`, `quarter`; r with leave-one-out of `gradient` and `attnlrp`, of `mended`,
        the gradient with leave-one-out itself at the top token, and of what is lost at each
        degree; `early`, the share of the top token's leave-one-out that is lost halfway, and
        `bend`, the share of that which is lost in the first tenth, five times.
    """
    rows = []
    for text, own in paths.groupby("id", sort=False):
        lost = own.pivot(index="token", columns="degree", values="lost")
        tokens = own.drop_duplicates("token").set_index("token")
        maps = lost.join(tokens[["gradient", "attnlrp"]])
        maps["mended"] = tokens.gradient.mask(tokens.top, tokens.loo)
        first, half, loo = lost[0.1][tokens.top], lost[0.5][tokens.top], tokens.loo[tokens.top]
        rows.append(
            {
                "id": text,
                **tokens[["logit", "quarter"]].iloc[0],
                **maps.corrwith(tokens.loo),
                "early": (half / loo).iloc[0],
                "bend": (5 * first / half).iloc[0],
            }
        )
    return pd.DataFrame(rows)


def rank_correlation(x: Array, y: Array, given: Array | None = None, *, axis: int = -1) -> Array:
    """Spearman's correlation of texts, partial where a third sample is `given`.

    Each sample is (…, texts): a statistic for `lrputils.stats.estimate`.
    """
    r = stats.spearman(x, y)
    if given is None:
        return r.squeeze()
    a, b = stats.spearman(x, given), stats.spearman(y, given)
    return ((r - a * b) / np.sqrt((1 - a**2) * (1 - b**2))).squeeze()


def buy_exact(run: str, most: int = 12) -> pd.DataFrame:
    """Return a row a text of `results/maps` and number of exact passes, 0 to `most`.

    The passes go to single tokens of the text's own, in the `order` of their mask gradient or of
    chance; the other tokens keep their mask gradient. Texts of fewer than 6 tokens are left out.

    Returns:
        `id`, `logit`, `order` ("estimate" or "chance"), `passes`, and `r` with leave-one-out.
    """
    texts = frame.read_rows("factorial", [run]).drop_duplicates("id").set_index("id")
    maps = frame.read_maps("maps", runs=[run]).drop_duplicates("id").set_index("id")
    texts = read_scores(run).join(texts.logit).join(maps.content)
    chance, rows = np.random.default_rng(0), []
    for text in texts.itertuples():
        own = np.array(text.content)
        loo, estimate = np.array(text.loo)[own], np.array(text.gradient)[own].astype(float)
        if len(loo) < 6:
            continue
        orders = {"estimate": np.argsort(-abs(estimate)), "chance": chance.permutation(len(loo))}
        for order, tokens in orders.items():
            mixed = estimate.copy()
            for passes in range(most + 1):
                r = float(np.corrcoef(mixed, loo)[0, 1])
                row = {"id": text.Index, "logit": text.logit, "order": order}
                rows.append({**row, "passes": passes, "r": r})
                mixed[tokens[passes : passes + 1]] = loo[tokens[passes : passes + 1]]
    return pd.DataFrame(rows)


def move_passes(bought: pd.DataFrame, passes: int) -> pd.Series:
    """Give the more confident half of texts more exact passes, at the price of `passes` for each.

    How many move from every text of the less confident half to one of the more confident half is
    chosen on every second text, 1 to `passes`; the rest test it.

    Args:
        bought: of `buy_exact`, for one run.

    Returns:
        `moved`, the number; `chosen`, the gain in mean r where it was chosen, over the same
        number for every text; `value`, `low`, `high`, the gain on the other texts, with Student's
        interval; `chance`, the same texts' gain of tokens by estimate over random tokens.
    """
    wide = bought.pivot(index=["id", "logit"], columns=["order", "passes"], values="r")
    gains, halves = {}, (wide.iloc[::2], wide.iloc[1::2])
    for moved in range(1, passes + 1):
        gains[moved] = []
        for half in halves:
            logit = half.index.get_level_values("logit")
            sure, r = logit >= np.median(logit), half["estimate"]
            gain = r[passes + moved].where(sure, r[passes - moved]) - r[passes]
            gains[moved].append(gain)
    best = max(gains, key=lambda moved: gains[moved][0].mean())
    found = stats.estimate(gains[best][1].to_numpy(), method="t")
    random = halves[1]["estimate", passes] - halves[1]["chance", passes]
    told = {"moved": best, "chosen": gains[best][0].mean(), "value": found.value}
    return pd.Series({**told, "low": found.low, "high": found.high, "chance": random.mean()})


def spend(maps: pd.DataFrame, passes: int) -> pd.DataFrame:
    """Spend three or six passes beside the mask gradient's three in each of three ways.

    Args:
        maps: of `experiments.price.read_maps`.
        passes: 3, or 6.

    Returns:
        a row a text of at least 8 own tokens and `way`: "exact", the mask gradient with
        leave-one-out itself at the so many tokens that it ranks first; "chance", at random ones;
        "groups", half-removal, after six passes added to the mask gradient. `model`, `data`, `id`;
        `logit`, the size of f; over own tokens `r` with leave-one-out, and `top`, whether the
        largest scores are at one token.
    """
    rows, random = [], np.random.default_rng(0)
    by_groups = {3: price.HALVES, 6: price.BOTH}[passes]
    used = maps[maps["map"].isin([price.ONE, by_groups, price.LOO])]
    for text, own in used.groupby(price.TEXT, sort=False):
        words = np.array(own.content.iloc[0])
        if words.sum() < 8:
            continue
        scores = {row.map: np.array(row.scores, float)[words] for row in own.itertuples()}
        estimate, loo = scores[price.ONE], scores[price.LOO]
        ways = {"groups": scores[by_groups]}
        orders = {"exact": np.argsort(-abs(estimate)), "chance": random.permutation(len(loo))}
        for way, tokens in orders.items():
            ways[way] = estimate.copy()
            ways[way][tokens[:passes]] = loo[tokens[:passes]]
        told = dict(zip(price.TEXT, text, strict=True)) | {"logit": abs(own.logit.iloc[0])}
        for way, bought in ways.items():
            top = abs(bought).argmax() == abs(loo).argmax()
            r = float(np.corrcoef(bought, loo)[0, 1])
            rows.append({**told, "way": way, "r": r, "top": float(top)})
    return pd.DataFrame(rows)


def choose_by_confidence(spent: pd.DataFrame) -> stats.Estimate:
    """Return what it gains to give confident texts one way to spend passes, and others another.

    Which half of the texts has exact passes and which the groups is chosen on every second text,
    and so is the one way for all that is compared with. The remaining texts test it.

    Args:
        spent: of `spend`, for one model and data set.

    Returns:
        the gain in mean r, with Student's interval.
    """
    r = spent.pivot(index=["id", "logit"], columns="way", values="r")
    means, tested = {}, {}
    for kept, half in ((means, r.iloc[::2]), (tested, r.iloc[1::2])):
        logit = half.index.get_level_values("logit")
        sure = logit >= np.median(logit)
        kept["one way"] = {way: half[way] for way in ("exact", "groups")}
        kept["by confidence"] = {
            "exact": half.exact.where(sure, half.groups),
            "groups": half.groups.where(sure, half.exact),
        }
    best = {kind: max(ways, key=lambda way: ways[way].mean()) for kind, ways in means.items()}
    chosen = {kind: tested[kind][way] for kind, way in best.items()}
    return stats.estimate(chosen["by confidence"] - chosen["one way"], method="t")
