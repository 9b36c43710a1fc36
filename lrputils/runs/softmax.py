"""Record where a classifier's attention goes wrong: the softmax errors of every layer and text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.runs import results
from lrputils.runs.folders import claimed
from lrputils.study.softmax_errors import MEASURES, layer_errors


def record_softmax(
    classifier: Classifier,
    texts: Texts,
    out: str | Path,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
    command: str = "",
    parameters: Mapping[str, Any] | None = None,
) -> Path:
    """Measure `lrputils.study.softmax_errors.layer_errors` of every text and write them to `out`.

    Two passes a text: so little that there is nothing to go on with after a kill.
    """
    with claimed(Path(out), {}):
        began = time.monotonic()
        rows = layer_errors(
            classifier, texts, batch_size=batch_size, max_length=max_length, truncate=True
        )
        # Four decimals: a tenth of what another processor moves them by.
        rows[list(MEASURES)] = rows[list(MEASURES)].astype("float32").round(4)
        facts = results.provenance(
            command=command,
            parameters={**(parameters or {}), "batch_size": batch_size, "max_length": max_length},
            seconds=time.monotonic() - began,
            device=classifier.device,
            model={"name": classifier.name, "identity": classifier.identity},
            data={"name": texts.name, "identity": texts.identity, "texts": len(texts)},
        )
        return results.write(out, rows.drop(columns="position"), facts)
