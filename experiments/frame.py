"""Recorded runs as one long table: text × method × options → map; this run among them.

A study is then a filter and a `groupby`. How maps compare is in `lrputils.study.agreement`.

This run is rows with the same columns, because the same call made them. Where its model or its
texts are the reader's it stands first, under the model's name; else last, as `THIS_RUN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.by_text import MAP
from lrputils.removal.mask_gradient import BOTH, added
from lrputils.runs.datasets import read
from lrputils.runs.folders import RUN
from lrputils.runs.results import load
from lrputils.study.variants import spelled

# Run → the names of its model, with layers × width, and of its data.
RUNS = {
    "minilm-sst2": ("MiniLM, 6 × 384", "SST-2"),
    "mpnet6-sst2": ("MPNet, first 6 × 768", "SST-2"),
    "mpnet-sst2": ("MPNet, 12 × 768", "SST-2"),
    "minilm-imdb": ("MiniLM, 6 × 384", "IMDB"),
    "mpnet-imdb": ("MPNet, 12 × 768", "IMDB"),
}
MINILM, MPNET6, MPNET = dict.fromkeys(model for model, _ in RUNS.values())
# The two classifiers of SST-2 and of IMDB that the book's findings are about.
MAIN = [run for run in RUNS if run != "mpnet6-sst2"]
THIS_RUN = "this run"  # of the book's own model and texts
MAPS = ("maps", "canon", "controls", "remedy", "yardstick", "gradients")


def read_rows(
    kind: str, runs: Sequence[str] = tuple(RUNS), folder: str | Path | None = None
) -> pd.DataFrame:
    """Read recorded runs of one kind as one table, the columns `model` and `data` first.

    The other columns are the kind's own, see `results/README.md`. Those of `runs` that are recorded
    in `results/KIND` are read.

    Raises:
        FileNotFoundError: none is.
        ValueError: see `lrputils.runs.results.load`.
    """
    parts = []
    for run in runs:
        with suppress(FileNotFoundError):
            rows = load(kind, run, folder).rows
            names = dict(zip(("model", "data"), RUNS[run.removesuffix("-exact")], strict=True))
            rows = rows.assign(id=rows.id.astype(str))
            parts.append(pd.concat([pd.DataFrame(names, index=rows.index), rows], axis=1))
    if not parts:
        load(kind, runs[0], folder)  # says which there are
    return pd.concat(parts, ignore_index=True)


def recorded_loo(run: str, kind: str = "maps") -> pd.Series:
    """Leave-one-out by the attention mask, (tokens,), of a run of a kind of maps, by the text."""
    rows = load(kind, run).rows
    exact = rows[(rows.method == "loo") & (rows.removal == "attention-mask")]
    return exact.set_index(exact.id.astype(str)).scores


def read_run(folder: str | Path, **needed: Any) -> pd.DataFrame:
    """Read what `lrputils evaluate --out FOLDER` wrote, the columns `model` and `data` first.

    Args:
        folder: of the run.
        needed: options of `lrputils evaluate` that what is shown takes, as `methods` or `curves`;
            where it takes several values, the run may have more.

    Raises:
        FileNotFoundError: there is no run in the folder.
        ValueError: it was made without an option; the message says which command makes it.
    """
    needed = {**needed, "units": "token"}
    options = " ".join(map(_as_option, needed.items()))
    command = f"`lrputils evaluate --model … --dataset … {options} --out DIR`"
    if not (Path(folder) / RUN).is_file():
        raise FileNotFoundError(f"{folder} holds no run: {command} writes one that is shown here")
    run = read(folder)
    told = {**run.provenance["options"], "methods": run.provenance["methods"]}
    if missing := [name for name, value in needed.items() if _lacks(told.get(name), value)]:
        raise ValueError(
            f"the run in {folder} was made without the {', '.join(missing)} that are shown here: "
            f"{command} makes one with them, in another folder"
        )
    names = {name: run.provenance[name]["name"] for name in ("model", "data")}
    return pd.concat([pd.DataFrame(names, index=run.rows.index), run.rows], axis=1)


def with_run(recorded: pd.DataFrame, run: pd.DataFrame, *, own: bool) -> pd.DataFrame:
    """Put a run among recorded rows: first where it is the reader's `own`, else last, `THIS_RUN`.

    Args:
        recorded: of `read_rows` or `read_maps`, or made of them.
        run: of `read_run`, or rows of `lrputils.evaluate` with the columns `model` and `data`.
        own: whether the model or the texts are not the book's.
    """
    run = run.assign(id=run.id.astype(str))
    parts = [run, recorded] if own else [recorded, run.assign(model=THIS_RUN)]
    return pd.concat(parts, ignore_index=True)


def read_maps(
    *kinds: str, runs: Sequence[str] = tuple(RUNS), folder: str | Path | None = None
) -> pd.DataFrame:
    """Read recorded maps of several kinds as one table: a row a text, method and options.

    A map that two kinds hold under the same choices is read from the first.

    Args:
        kinds: of `MAPS`.
        runs: names in `RUNS`; those that a kind lacks are left out.
        folder: of results, see `lrputils.runs.results.load`.

    Returns:
        `model`, `data`, `id`; `method`, a name of `lrp.METHODS`, of a control (chapter 3) or "loo";
        its `options`, of LRP the rules beside those for attention; `readout`; `removal`, of LOO;
        `units`; `target`, `label`, `logit`; `content`, (tokens,), false at special tokens;
        `scores`, (tokens,); `passes` and `seconds` where they were recorded. An absent choice is
        "".

    Raises:
        FileNotFoundError: no run of a kind is recorded.
        ValueError: a kind that holds no maps, or damaged rows.
    """
    if strays := sorted({*kinds} - {*MAPS}) or ["nothing"] * (not kinds):
        raise ValueError(f"{strays} hold no maps; choose from {[*MAPS]}")
    rows = pd.concat([read_rows(kind, runs, folder) for kind in kinds], ignore_index=True)
    return rows.drop_duplicates(["model", "data", "id", *MAP], ignore_index=True)


def named(maps: pd.DataFrame) -> pd.DataFrame:
    """Return maps with `method` as `lrp.evaluate` calls it: "mask-gradient groups=2"."""
    return maps.assign(method=(maps.method + " " + maps.options).str.strip())


def add_sums(maps: pd.DataFrame, groups: int = 2) -> pd.DataFrame:
    """Add the mean of one open pass and half-removal (`with_open=True`), from maps of both.

    Args:
        maps: of `read_maps`, the kind "remedy" among them.
        groups: of half-removal.

    Returns:
        `maps` and, for each text that has both, a row of the method with these options; its
        `passes` are those of both.
    """
    text = ["model", "data", "id"]
    estimates = maps[maps.method == "mask-gradient"]
    whole = estimates[estimates.options == ""].set_index(text).scores
    parts = estimates[estimates.options == spelled({"groups": groups})].set_index(text)
    parts = parts.loc[parts.index.intersection(whole.index, sort=False)].reset_index()
    scores = []
    for row in parts.itertuples():
        one, part = whole[row.model, row.data, row.id], row.scores
        pair = [torch.tensor(np.asarray(some))[None] for some in (one, part, row.content)]
        scores.append(added(*pair, groups)[0].numpy())
    options = spelled({"groups": groups, "with_open": True})
    sums = parts.assign(options=options, scores=scores, passes=parts.passes + BOTH)
    return pd.concat([maps, sums], ignore_index=True)


def _lacks(held: Any, value: Any) -> bool:
    return not {*value} <= {*(held or ())} if isinstance(value, list | tuple) else held != value


def _as_option(option: tuple[str, Any]) -> str:
    name, value = option
    told = ",".join(value) if isinstance(value, list | tuple) else "" if value is True else value
    return f"--{name} {told}".rstrip()
