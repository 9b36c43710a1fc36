"""Record estimates of leave-one-out; `lrputils.study.remedy` measures them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.runs.texts import _in_shards, _shortened
from lrputils.study import remedy


def record_remedy(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    settings: Sequence[str] | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    shard: int = 16,
    **how: Any,
) -> Path:
    """Record `lrputils.study.remedy.maps` of every text into `out`; see `record`."""
    settings = list(remedy.SETTINGS) if settings is None else list(settings)
    remedy.check(settings)
    sizes = {"max_length": max_length, "batch_size": batch_size}
    options = {"settings": settings, **sizes}

    def measure(numbers: Sequence[int]) -> pd.DataFrame:
        return remedy.maps(classifier, texts.take(numbers), **options)

    def finish(rows: pd.DataFrame) -> pd.DataFrame:
        kept = {"scores": rows.scores.map(_shortened), "seconds": rows.seconds.round(4)}
        return rows.assign(**kept)

    return _in_shards(measure, finish, classifier, texts, out, {**options, "shard": shard}, **how)
