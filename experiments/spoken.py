"""What two language models said, as it was recorded: a label behind a prompt, and whole answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments import frame
from lrputils import stats
from lrputils.attribution import METHODS
from lrputils.runs.results import load
from lrputils.study.agreement import EVERY, WORDS, agreement, compare

MODELS = {"smollm2": "SmolLM2, 30 × 576", "gemma3": "Gemma 3, 18 × 640"}
# What is removed → its recordings. LOO by deletion of the questions was recorded later.
UNITS = {
    "sentences": ["questions", "questions-delete"],
    "reviews": ["imdb"],
    "words": ["words"],
}
HALVES, IN_TWO = "Half-removal", "mask-gradient groups=2"
USUAL, CURVES = "own tokens, difference of labels", "Δ, in logits"
ONLY_FIRST = "LOO's first unit only"
_NAMES = {"loo": "LOO", "deleted": "LOO by deletion", IN_TWO: HALVES}
_NAMES |= {"surrogate": "surrogate of 64 passes"}
_NAMES |= {name: METHODS[name].label for name in ("attnlrp", "cp-lrp", "mask-gradient")}
_LONGEST = 40  # tokens of an answer; one that has more is read back as others than were said


def read_prompted(
    asked: str = "", output: str = "difference", kind: str = "prompted"
) -> pd.DataFrame:
    """Read both models' maps of SST-2's sentences behind a prompt.

    Args:
        asked: what was asked of the rows, as "-delete" (LOO by deletion).
        output: what is explained: the "difference" of the two labels' logits, the predicted one's
            "logit", or its "log-probability".
        kind: "prompted", or "factorial": r under each of LRP's rules.

    Returns:
        a row a text and map, as of `experiments.frame.read_maps`.
    """
    parts = []
    for run, name in MODELS.items():
        rows = load(kind, f"{run}-sst2{asked}").rows
        rows = rows[rows.output == output] if "output" in rows else rows
        parts.append(rows.assign(id=rows.id.astype(str), model=name, data="SST-2"))
    return pd.concat(parts, ignore_index=True)


def describe_prompted(maps: pd.DataFrame) -> pd.DataFrame:
    """Return how each model answers behind the prompt, and what exact LOO of it takes.

    Args:
        maps: of `read_prompted`.

    Returns:
        a row a model: `sentences`; `accuracy`; `called positive`, a share; `passes`, the mean of
        what LOO of all of a sentence's own words takes.
    """
    known = load("sst", "minilm-sst2").rows.drop_duplicates("id")  # the same sentences, by number
    labels = known.set_index(known.id.astype(str)).label
    found = {}
    for name, rows in maps[maps.method == "loo"].groupby("model", sort=False):
        parts = [(len(own) - np.flatnonzero(own)).sum() / len(own) for own in rows.content]
        found[name] = {
            "sentences": len(rows),
            "accuracy": float(np.mean(rows.target.to_numpy() == labels[rows.id].to_numpy())),
            "called positive": float(rows.target.mean()),
            "passes": 1 + float(np.mean(parts)),
        }
    return pd.DataFrame.from_dict(found, orient="index").astype({"sentences": int})


def compare_choices(pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], pd.DataFrame]:
    """Compare pairs of maps of the prompted models, over own tokens and with one choice changed.

    Args:
        pairs: of methods as of `experiments.frame.named`, the first less the second.

    Returns:
        pair → a row a model and choice, as of `lrputils.study.agreement.compare`: the mean
        difference of r with leave-one-out, or of Δ. A choice without the pair is left out.
    """
    maps = frame.named(read_prompted())
    own = agreement(maps, [WORDS])
    exact = read_prompted("-delete").query("method == 'loo'").assign(removal="attention-mask")
    by_deletion = pd.concat([exact, maps[maps.method.isin(["attnlrp", "cp-lrp", "mask-gradient"])]])
    curves = read_prompted("-curves")
    rows = {
        USUAL: own,
        "all tokens of the prompt": agreement(maps, [EVERY]),
        "one label's logit": agreement(read_prompted("-outputs", "logit"), [WORDS]),
        "its log-probability": agreement(read_prompted("-outputs", "log-probability"), [WORDS]),
        "LOO by deletion": agreement(by_deletion, [WORDS]),
        CURVES: curves.assign(delta=curves.lerf - curves.morf),
    }
    found = {}
    for pair in pairs:
        parts = {}
        for choice, r in rows.items():
            if {*pair} <= {*r.method}:
                column = "delta" if choice == CURVES else "r"
                parts[choice] = compare(r, *pair, "model", column=column)
        found[pair] = pd.concat(parts).swaplevel().loc[[*MODELS.values()]]
    return found


def read_answers(unit: str) -> pd.DataFrame:
    """Read the maps of SmolLM2's answers: a row a prompt and map, named as in the book.

    Args:
        unit: what is removed: "sentences" of a chat, sentences of "reviews", "words" of a chat.
    """
    parts = [load("answers", f"smollm2-{run}").rows for run in UNITS[unit]]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[(rows.length <= _LONGEST) & (rows.own.map(np.sum) > 2) & (rows.passes != 32)]
    by_deletion = rows.removal == "delete"
    rows["map"] = frame.named(rows).method.mask(by_deletion, "deleted").map(_NAMES)
    return rows.dropna(subset="map")


def compare_answers(unit: str) -> pd.DataFrame:
    """Compare each map of an answer with LOO, over what of the prompt is the text's own.

    Args:
        unit: see `read_answers`.

    Returns:
        `r`, `rank` (Spearman) and `first`, by (prompt, map): the share of LOO's first sentence, of
        words LOO's first three, among the map's as many. `ONLY_FIRST` names LOO's first correctly
        and gives the others nothing.
    """
    found, count = {}, 3 if unit == "words" else 1
    for text, rows in read_answers(unit).groupby("id"):
        own = np.array(rows.own.iloc[0], bool)
        maps = {name: np.array(x)[own] for name, x in zip(rows["map"], rows.scores, strict=True)}
        loo = maps.pop("LOO")
        maps[ONLY_FIRST] = np.eye(own.sum())[loo.argmax()]
        top = {*np.argsort(-loo)[:count]}
        for name, scores in maps.items():
            among = top & {*np.argsort(-scores)[:count]}
            found[text, name] = {
                "r": float(stats.pearson(scores, loo)[0]),
                "rank": float(stats.spearman(scores, loo)[0]),
                "first": len(among) / count,
            }
    return pd.DataFrame(found).T.rename_axis(["id", "map"])
