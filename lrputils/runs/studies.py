"""Record what a study measures of texts: maps, estimates, yardsticks, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.leave_one_out import REMOVALS
from lrputils.removal.shapley import check_permutations
from lrputils.runs.texts import compact, in_parts
from lrputils.study import conventions, refactorings, remedy, yardstick
from lrputils.study.softmax_errors import layer_errors


def _maps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep 14 bits of each score, 6e-5 of it: what follows would not be squeezed."""

    def shortened(scores: np.ndarray) -> np.ndarray:
        mantissa, exponent = np.frexp(scores)
        return np.ldexp(np.round(mantissa * 2**14) / 2**14, exponent).astype(np.float32)

    return rows.assign(scores=rows.scores.map(shortened))


class Study(NamedTuple):
    """What is recorded: `measure` returns the rows of a classifier, texts and the options.

    `keep` rounds them for the file; `refuse` raises ValueError for impossible options, before
    anything is written; `shard` counts texts.
    """

    measure: Callable[..., pd.DataFrame]
    options: Mapping[str, Any]
    keep: Callable[[pd.DataFrame], pd.DataFrame] = _maps
    shard: int = 16
    refuse: Callable[[Mapping[str, Any]], None] = lambda options: None


_SIZES = {"max_length": None, "batch_size": 16}
_softmax = partial(layer_errors, truncate=True, progress=False)
STUDIES = {
    "maps": Study(
        conventions.maps,
        {"removals": REMOVALS, "methods": None, **_SIZES},
        refuse=lambda options: conventions.refuse_unknown(options["removals"], options["methods"]),
    ),
    "remedy": Study(
        remedy.maps,
        {"settings": tuple(remedy.SETTINGS), **_SIZES},
        refuse=lambda options: remedy.refuse_unknown(options["settings"]),
    ),
    "yardstick": Study(
        yardstick.measured,
        {"permutations": 16, "exact": False, **_SIZES},
        shard=8,
        refuse=lambda options: check_permutations(options["permutations"]),
    ),
    "softmax": Study(_softmax, _SIZES, lambda rows: compact(rows.drop(columns="position"))),
    "refactored": Study(partial(refactorings.compared, controls=False), _SIZES, lambda rows: rows),
}


def record_study(
    name: str,
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    longest: int | None = None,
    shard: int | None = None,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **options: Any,
) -> Path:
    """Record one of `STUDIES` into `out`; the rest is as in `lrputils.runs.texts.record`.

    Texts of more than `longest` words are left out; of the study's own `options` None is the
    default.

    Raises:
        ValueError: no text is short enough, options that the study refuses, or as in `record`.
    """
    study = STUDIES[name]
    texts = take_short(texts, longest)
    options = {**study.options, **{k: v for k, v in options.items() if v is not None}}
    study.refuse(options)

    def measure(numbers: Sequence[int]) -> pd.DataFrame:
        return study.keep(study.measure(classifier, texts.take(numbers), **options))

    told = {**options, "longest": longest, "shard": shard or study.shard}
    how = {"command": command, "parameters": parameters, "quiet": quiet}
    return in_parts(measure, classifier, texts, out, told, **how)


def take_short(texts: Texts, longest: int | None) -> Texts:
    """Return the texts of at most `longest` words, all for None; ValueError if none is left."""
    short = [i for i, text in enumerate(texts) if longest is None or len(text.split()) <= longest]
    if not short:
        raise ValueError(f"--longest {longest}: each of the {len(texts)} texts has more words")
    return texts.take(short)
