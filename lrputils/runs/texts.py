"""Record the methods and layer ablations of a classifier on texts, shard by shard.

`lrputils.study.evaluation` measures, `lrputils.runs.results` reads what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lrputils.attribution import METHODS
from lrputils.data.texts import Texts, TextStream
from lrputils.model.classifier import Classifier
from lrputils.model.readout import readouts
from lrputils.runs import results
from lrputils.runs.options import check_numbers
from lrputils.runs.shards import Shard, in_shards
from lrputils.study.evaluation import Evaluation, evaluate
from lrputils.study.variants import Label, LayerSweep, Variant

# Methods whose price is an option.
_BOUGHT = ("shapley", "budgeted-loo")


@dataclass(frozen=True)
class Settings:
    """What decides the rows, beside the model and the texts.

    Attributes:
        methods: names from `lrputils.attribution.METHODS`; leave-one-out is among them anyway.
            By default all but "shapley", which costs thirty times as much as leave-one-out, and
            "budgeted-loo", which costs as much as it is given.
        curves: perturb the texts along these methods' maps, beside leave-one-out's; None: all.
        chunk: tokens that go at once along the perturbation curves.
        max_length: longer texts are cut to this many tokens; the model's own limit if not given.
        ablation_curves: perturb along the layer ablations too, on this many texts, the first ones,
            up to whole shards; None: on all. Everything else is recorded on all texts.
        shard: texts a shard.
        batch_size: texts a batch.
    """

    methods: tuple[str, ...] = tuple(name for name in METHODS if name not in _BOUGHT)
    curves: tuple[str, ...] | None = None
    chunk: int = 1
    max_length: int | None = None
    ablation_curves: int | None = None
    shard: int = 16
    batch_size: int = 16

    def __post_init__(self) -> None:
        check_numbers(vars(self))
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown or not self.methods:
            raise ValueError(f"unknown method(s) {unknown or ''}; choose from {list(METHODS)}")
        if stray := [name for name in self.curves or () if name not in self.methods]:
            raise ValueError(f"curves of {stray}, which are not among the methods {self.methods}")


def record(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    settings: Settings | None = None,
    *,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Path:
    """Record the methods and ablations of a classifier on texts into `out`.

    A finished recording there, e.g. in `results/sst/minilm-sst2`, is replaced when the new one is
    whole. `command` (what to call to get the same rows) and `parameters` (how model and texts were
    chosen) are for the provenance.

    Raises:
        ValueError: an unfinished recording of something else lies in `out`, or another process
            records into it.
    """
    settings = settings or Settings()

    def measure(numbers: Sequence[int]) -> pd.DataFrame:
        return compact(_shard(classifier, texts, numbers, settings))

    how = {"command": command, "parameters": parameters, "quiet": quiet}
    return in_parts(measure, classifier, texts, out, asdict(settings), **how)


def in_parts(
    measure: Callable[[Sequence[int]], pd.DataFrame],
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    options: Mapping[str, Any],
    *,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Path:
    """Record what `measure` returns of some texts at a time; a run that was killed goes on."""
    texts_of = [texts.identity, len(texts), texts.ids[0], texts.ids[-1]]
    plan = {"model": classifier.identity, "texts": texts_of, **options}
    numbers, size = range(len(texts)), options["shard"]

    def cut(work: Path) -> dict[str, Shard]:
        parts = {f"{i:06d}": numbers[i : i + size] for i in numbers[::size]}
        return {name: Shard(partial(measure, part), len(part)) for name, part in parts.items()}

    def finish(paths: Sequence[Path], seconds: float) -> tuple[Sequence[Path], dict[str, Any]]:
        told = {**(parameters or {}), **options}
        facts = provenance(classifier, texts, len(texts), command, told, seconds)
        return paths, {**facts, "accuracy": accuracy(paths)}

    return in_shards(out, plan, cut, finish, quiet=quiet)


def accuracy(paths: Sequence[Path]) -> float | None:
    """Return the share of texts that are classified right, a shard at a time; see `Recording`."""
    right, texts, columns = 0.0, 0, ["id", "target", "label"]
    if not {*columns} <= {*pq.read_schema(paths[0]).names}:
        return None
    for path in paths:
        rows = pd.read_parquet(path, columns=columns).drop_duplicates("id")
        share = results.Recording(rows, {}).accuracy()
        if share is None:
            return None
        right, texts = right + share * len(rows), texts + len(rows)
    return right / texts


def provenance(
    classifier: Classifier,
    source: Texts | TextStream,
    texts: int,
    command: str,
    parameters: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Return the provenance of so many texts' rows; see `lrputils.runs.results.provenance`."""
    return results.provenance(
        command=command,
        parameters=parameters,
        seconds=seconds,
        device=classifier.device,
        model={"name": classifier.name, "identity": classifier.identity},
        data={"name": source.name, "identity": source.identity, "texts": texts},
    )


def _shard(
    classifier: Classifier, texts: Texts, numbers: Sequence[int], settings: Settings
) -> pd.DataFrame:
    """Measure some texts: the main methods, then what is read elsewhere or only correlated."""
    chosen = texts.take(numbers)
    perturbed = settings.ablation_curves is None or numbers[0] < settings.ablation_curves
    options = {
        "batch_size": settings.batch_size,
        "max_length": settings.max_length,
        "truncate": True,
        "progress": False,
    }
    places = readouts(classifier.architecture)
    away = [
        Variant(method, method, {"readout": place})
        for method in ("attnlrp", "cp-lrp")
        for place in places[1:]
    ]
    along = settings.methods if settings.curves is None else settings.curves
    first = [*along, *[LayerSweep()] * perturbed]
    others = [name for name in settings.methods if name not in along]
    rest = [*others, *away, LayerSweep(places[perturbed:])]
    main = evaluate(classifier, chosen, first, chunk=settings.chunk, **options)
    more = evaluate(classifier, chosen, rest, reference=main, **options)
    return pd.concat([_rows(main), _rows(more)[lambda rows: rows.method != "loo"]])


def _rows(evaluation: Evaluation) -> pd.DataFrame:
    """The rows of an evaluation, the points of its curves behind them."""
    rows, curves = evaluation.rows, evaluation.curves
    labels = map(Label, rows.method, rows.readout, rows.family, rows.layer)
    texts = [curves.get(label) or curves.get(label.method) for label in labels]
    found = [part and part[text] for part, text in zip(texts, rows.position, strict=True)]
    for part in ("lerf", "morf"):
        curves = [None if c is None else np.round(getattr(c, part), 3) for c in found]
        rows[f"{part}_curve"] = pd.Series(curves, index=rows.index, dtype=object)
    return rows.drop(columns="position")


def compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of measured values: a tenth of what another processor moves them by."""
    floats = rows.select_dtypes("float").columns
    rows[floats] = rows[floats].astype("float32").round(4)
    return rows
