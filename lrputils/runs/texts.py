"""Record a text experiment: every method and every layer ablation on every text.

The texts are measured shard by shard. A shard is written atomically, so a run that was killed
continues by the same command and loses at most one. `lrputils.runs.results` reads recordings,
`lrputils.study.evaluation` measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrputils.attribution import METHODS
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.readout import READOUTS
from lrputils.runs import results
from lrputils.runs.folders import claimed, shards
from lrputils.study.evaluation import Evaluation, evaluate
from lrputils.study.variants import Label, LayerSweep, Variant

_COUNTS = ("chunk", "max_length", "shard", "batch_size")
_AWAY = tuple(readout for readout in READOUTS if readout != "word")


@dataclass(frozen=True)
class Settings:
    """What decides the rows, beside the model and the texts.

    Attributes:
        methods: names from `lrputils.attribution.METHODS`; leave-one-out is among them anyway.
        chunk: tokens that go at once along the perturbation curves.
        max_length: longer texts are cut to this many tokens; the model's own limit if not given.
        ablation_curves: perturb along the layer ablations too, on this many texts, the first ones,
            up to whole shards; None: on all. Everything else is recorded on all texts.
        shard: texts a shard.
        batch_size: texts a batch.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    chunk: int = 1
    max_length: int | None = None
    ablation_curves: int | None = None
    shard: int = 16
    batch_size: int = 16

    def __post_init__(self) -> None:
        for name, least in {"ablation_curves": 0, **dict.fromkeys(_COUNTS, 1)}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: the smallest possible value is {least}")
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown or not self.methods:
            raise ValueError(f"unknown method(s) {unknown or ''}; choose from {list(METHODS)}")


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
    settings, out = settings or Settings(), Path(out)
    plan = {
        "model": classifier.identity,
        "texts": [texts.identity, len(texts), texts.ids[0], texts.ids[-1]],
        **asdict(settings),
    }
    todo = {
        f"{start:06d}": partial(
            _shard, classifier, texts, range(start, start + settings.shard), settings
        )
        for start in range(0, len(texts), settings.shard)
    }
    with claimed(out, plan) as work:
        parts, seconds = shards(work, todo, "shards", quiet)
        rows = _compact(pd.concat(parts, ignore_index=True))
        facts = results.provenance(
            command=command,
            parameters={**(parameters or {}), **asdict(settings)},
            seconds=seconds,
            device=classifier.device,
            model={"name": classifier.name, "identity": classifier.identity},
            data={"name": texts.name, "identity": texts.identity, "texts": len(texts)},
            accuracy=results.Recording(rows, {}).accuracy(),
        )
        return results.write(out, rows, facts)


def _shard(
    classifier: Classifier, texts: Texts, numbers: Sequence[int], settings: Settings
) -> pd.DataFrame:
    """Measure some texts: the main methods, then what is read elsewhere or only correlated."""
    numbers = [number for number in numbers if number < len(texts)]
    chosen = texts.take(numbers)
    limit = settings.ablation_curves
    perturbed = limit is None or numbers[0] < limit
    options = {
        "batch_size": settings.batch_size,
        "max_length": settings.max_length,
        "truncate": True,
        "progress": False,
    }
    away = [
        Variant(method, method, {"readout": readout})
        for method in ("attnlrp", "cp-lrp")
        for readout in _AWAY
    ]
    sweep = [LayerSweep("word")]
    first = [*settings.methods, *(sweep if perturbed else [])]
    rest = [*([] if perturbed else sweep), *away, *(LayerSweep(readout) for readout in _AWAY)]
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


def _compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep four decimals of measured values: a tenth of what another processor moves them by."""
    floats = rows.select_dtypes("float").columns
    rows[floats] = rows[floats].astype("float32").round(4)
    return rows
