"""What rounded factors of matrix products (`lrputils.model.precision`) change and save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lrputils.model.classifier import Classifier
from lrputils.model.precision import PRECISIONS, matmul_precision, takes_effect
from lrputils.study.cost.clock import timed
from lrputils.study.evaluation import REFERENCE, Evaluation, evaluate

# A change of r below this is called harmless.
HARMLESS = 1e-3


def precision_error(
    classifier: Classifier, texts: Sequence[str], *, max_length: int | None = None
) -> pd.DataFrame:
    """Compare every precision of products that the device may be asked for with float32.

    LOO and AttnLRP's map are both computed at the precision, as a run would. A row a precision:
    `effect` (none: the device ignores it, and the other columns are empty), `error of LOO` (the
    largest), `mean |LOO|` in float32, `change of r` (the largest over the texts), `verdict`, and
    `seconds` as a multiple of float32's.
    """
    device, rows = classifier.device, {}
    options = {"max_length": max_length, "truncate": True, "progress": False}
    work = partial(evaluate, classifier, texts, ["attnlrp"], **options)
    with matmul_precision("float32", device):
        work()
        baseline, exact = timed(device, work)
    for precision in PRECISIONS.get(device.type, ())[1:]:
        if not takes_effect(precision, device):
            rows[precision] = {"effect": "none on this device"}
            continue
        with matmul_precision(precision, device):
            seconds, rounded = timed(device, work)
        rows[precision] = {"effect": "yes", **_changes(exact, rounded)}
        rows[precision]["seconds / float32's"] = seconds / baseline
    return pd.DataFrame.from_dict(rows, orient="index")


def _changes(exact: Evaluation, rounded: Evaluation) -> dict[str, Any]:
    pairs = list(zip(exact.maps[REFERENCE], rounded.maps[REFERENCE], strict=True))
    change = (rounded.per_text("r") - exact.per_text("r")).attnlrp.abs().max()
    return {
        "error of LOO": float(max(np.abs(a - b).max() for a, b in pairs)),
        "mean |LOO|": float(np.concatenate([np.abs(a) for a, _ in pairs]).mean()),
        "change of r": float(change),
        "verdict": "harmless" if change < HARMLESS else "changes r",
    }
