"""Recorded paths to leave-one-out, token by token, and exact passes by the size of f.

How the paths are recorded is in `experiments.recordings.saturation`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments import frame
from lrputils import stats
from lrputils.runs.results import load
from lrputils.study.agreement import over_texts


def lost_by_degree(run: str) -> dict[str, pd.DataFrame]:
    """Return the share of leave-one-out that is lost by degree, medians over texts with intervals.

    They are those of the top word and of the other words (their median), in the quarters of the
    texts with the smallest and the largest f, by a name of each; the last is what would be lost in
    proportion.
    """
    texts, exact, rows = load("saturation", run).rows, frame.recorded_loo(run), []
    ranks = texts.logit.rank(method="dense")
    quarters = np.ceil(4 * ranks / ranks.max()).astype(int)
    texts = texts.assign(id=texts.id.astype(str), quarter=quarters).sort_values("id")
    for text in texts.itertuples():
        own = np.array(text.content)
        lost, loo = (np.array(some, float)[own] for some in (text.scores, exact[text.id]))
        share, top = lost / loo, abs(loo).argmax()
        others = pd.Series(np.delete(share, top)).median()
        told = {"id": text.id, "degree": text.degree, "quarter": text.quarter}
        rows.append(told | {"top word": share[top], "other words": others})
    table, found = pd.DataFrame(rows), {}
    for word in ("top word", "other words"):
        for quarter, sureness in {1: "unsure", 4: "sure"}.items():
            part = table[table.quarter == quarter]
            found[f"{word}, {sureness}"] = over_texts(part, "degree", word, statistic=np.median)
    degrees = table.degree.unique()
    found["in proportion"] = pd.DataFrame({"value": degrees}, degrees)
    return found


def buy_exact(run: str, most: int = 12) -> pd.DataFrame:
    """Return a row a text of `results/maps` and number of exact passes, 0 to `most`.

    The passes go to single tokens of the text's own, in the `order` of their mask gradient or of
    chance; the other tokens keep their mask gradient. Texts of fewer than 6 tokens are left out.

    Returns:
        `id`, `logit`, `order` ("estimate" or "chance"), `passes`, and `r` with leave-one-out.
    """
    exact, chance, rows = frame.recorded_loo(run), np.random.default_rng(0), []
    estimates = frame.read_maps("maps", runs=[run]).query("method == 'mask-gradient'")
    for text in estimates.sort_values("id").itertuples():
        own = np.array(text.content)
        loo, estimate = exact[text.id][own], np.array(text.scores, float)[own]
        if len(loo) < 6:
            continue
        orders = {"estimate": np.argsort(-abs(estimate)), "chance": chance.permutation(len(loo))}
        for order, tokens in orders.items():
            mixed = estimate.copy()
            for passes in range(most + 1):
                r = float(np.corrcoef(mixed, loo)[0, 1])
                row = {"id": text.id, "logit": text.logit, "order": order}
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
