"""Record maps of texts: under each convention, at each price, and beside other yardsticks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.leave_one_out import REMOVALS
from lrputils.removal.shapley import check_permutations
from lrputils.runs.texts import in_parts
from lrputils.study import conventions, remedy, yardstick


def record_maps(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    removals: Sequence[str] = REMOVALS,
    methods: Sequence[str] | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    shard: int = 16,
    **how: Any,
) -> Path:
    """Record `lrputils.study.conventions.maps` of every text into `out`; see `record`."""
    conventions.check(removals, methods)
    options = {"removals": list(removals), "max_length": max_length, "batch_size": batch_size}
    options |= {} if methods is None else {"methods": list(methods)}

    def measure(numbers: Sequence[int]) -> pd.DataFrame:
        rows = conventions.maps(classifier, texts.take(numbers), **options)
        return rows.assign(scores=rows.scores.map(_shortened))

    return in_parts(measure, classifier, texts, out, {**options, "shard": shard}, **how)


def record_yardstick(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    permutations: int = 16,
    longest: int | None = None,
    max_length: int | None = None,
    batch_size: int = 16,
    shard: int = 8,
    **how: Any,
) -> Path:
    """Record `lrputils.study.yardstick.measured` into `out`; see `record`.

    Args:
        classifier: `load_classifier`'s answer.
        texts: `load_texts`' answer.
        out: the recording's folder.
        permutations: orders drawn for each text's Shapley values.
        longest: leave out texts of more words.
        max_length: longer texts are cut to this many tokens.
        batch_size: texts a batch.
        shard: texts a shard.
        how: `command`, `parameters` and `quiet` of `record`.

    Raises:
        ValueError: no text is short enough, an odd number of permutations, or as `record`.
    """
    check_permutations(permutations)
    short = [i for i, text in enumerate(texts) if longest is None or len(text.split()) <= longest]
    if not short:
        raise ValueError(f"--longest {longest}: each of the {len(texts)} texts has more words")
    texts = texts.take(short)
    options = {"permutations": permutations, "max_length": max_length, "batch_size": batch_size}

    def measure(numbers: Sequence[int]) -> pd.DataFrame:
        rows = yardstick.measured(classifier, texts.take(numbers), **options)
        return rows.assign(scores=rows.scores.map(_shortened))

    told = {**options, "longest": longest, "shard": shard}
    return in_parts(measure, classifier, texts, out, told, **how)


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
        rows = remedy.maps(classifier, texts.take(numbers), **options)
        kept = {"scores": rows.scores.map(_shortened), "seconds": rows.seconds.round(4)}
        return rows.assign(**kept)

    return in_parts(measure, classifier, texts, out, {**options, "shard": shard}, **how)


def _shortened(scores: np.ndarray) -> np.ndarray:
    """Keep 14 bits of each number, 6e-5 of it: what follows would not be squeezed."""
    mantissa, exponent = np.frexp(scores)
    return np.ldexp(np.round(mantissa * 2**14) / 2**14, exponent).astype(np.float32)
