"""By which way into a layer AttnLRP's relevance comes, and how far each agrees with exact LOO."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.study.evaluation import evaluate
from lrputils.study.routes import routes_by_layer


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    readouts: Sequence[str] = ("word", "sum"),
    batch_size: int = 16,
) -> pd.DataFrame:
    """Return a row a text, read-out, layer and route; of texts that need no cut.

    Returns:
        `id`, `readout` and the columns of `lrputils.study.routes.routes_by_layer`.
    """
    loo = evaluate(classifier, texts, [], batch_size=batch_size, progress=False).maps["loo"]
    parts = []
    for readout in readouts:
        how = {"readout": readout, "batch_size": batch_size}
        found = routes_by_layer(classifier, list(texts), loo, **how)
        ids = [texts.ids[position] for position in found.position]
        parts.append(found.assign(id=ids, readout=readout))
    rows = pd.concat(parts).sort_values("position", kind="stable")
    return rows.drop(columns="position")
