"""Record a text experiment: methods and ablations, maps by convention, and what attention hides.

The texts are measured shard by shard (`lrputils.runs.shards`). `lrputils.runs.results` reads
recordings, `lrputils.study.evaluation` measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrputils.attribution import METHODS
from lrputils.data.streams import TextStream
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import readouts
from lrputils.runs import results
from lrputils.runs.folders import claimed
from lrputils.runs.options import check_numbers
from lrputils.runs.shards import Shard, in_shards
from lrputils.study import patching
from lrputils.study.evaluation import Evaluation, evaluate
from lrputils.study.refactorings import compared
from lrputils.study.softmax_errors import layer_errors
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

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer.
        out: the recording's folder, e.g. `results/sst/minilm-sst2`. A finished one is replaced
            when the new one is whole.
        settings: see `Settings`.
        command: what to call to get the same rows; for the provenance.
        parameters: how model and texts were chosen; for the provenance.
        quiet: no progress.

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
    right, texts = 0.0, 0
    for path in paths:
        rows = pd.read_parquet(path, columns=["id", "target", "label"]).drop_duplicates("id")
        share = results.Recording(rows, {}).accuracy()
        if share is None:
            return None
        right, texts = right + share * len(rows), texts + len(rows)
    return right / texts


def record_softmax(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
    **how: Any,
) -> Path:
    """Record `lrputils.study.softmax_errors.layer_errors` of every text into `out`; see `record`.

    Two passes a text: so little that there is nothing to go on with after a kill.
    """
    options = {"batch_size": batch_size, "max_length": max_length}

    def measure() -> pd.DataFrame:
        progress = not how.get("quiet")
        rows = layer_errors(classifier, texts, truncate=True, progress=progress, **options)
        return compact(rows.drop(columns="position"))

    return _at_once(measure, classifier, texts, out, options, **how)


def record_refactored(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
    **how: Any,
) -> Path:
    """Record AttnLRP's rows of `lrputils.study.refactorings.compared` into `out`; see `record`."""
    options = {"batch_size": batch_size, "max_length": max_length}
    measure = partial(compared, classifier, texts, controls=False, **options)
    return _at_once(measure, classifier, texts, out, options, **how)


def record_patching(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    patches: int = 16,
    max_length: int | None = None,
    **how: Any,
) -> Path:
    """Record `lrputils.study.patching.measure` of every text into `out`; see `record`."""
    options = {"patches": patches, "max_length": max_length}

    def measure() -> pd.DataFrame:
        return compact(patching.measure(classifier, texts, **options))

    return _at_once(measure, classifier, texts, out, options, **how)


def _at_once(
    measure: Callable[[], pd.DataFrame],
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    options: Mapping[str, Any],
    *,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Path:
    """Record what `measure` returns; a run that was killed begins again."""
    with claimed(Path(out), {}):
        began = time.monotonic()
        rows = measure()
        seconds = time.monotonic() - began
        told = {**(parameters or {}), **options}
        facts = provenance(classifier, texts, len(texts), command, told, seconds)
        return results.write(out, rows, facts)


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
