"""By which way into a layer AttnLRP's relevance comes, and how far each agrees with exact LOO."""

from __future__ import annotations

import pandas as pd

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.by_text import in_order, predicted
from lrputils.study.routes import routes_by_layer


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    readouts: tuple[str, ...] = ("word", "sum"),
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, read-out, layer and route; of texts that need no cut.

    Returns:
        `id`, `readout` and the columns of `lrputils.study.routes.routes_by_layer`.
    """
    rows, loo = [], {}
    for inputs, target, of_texts in predicted(classifier, texts, batch_size, max_length):
        scores = leave_one_out(classifier.model, inputs, target=target, progress=False)
        for row, text in enumerate(of_texts):
            loo[text["position"]] = scores[row, : len(text["content"])].cpu().numpy()
    reference = [loo[position] for position in range(len(texts))]
    for readout in readouts:
        found = routes_by_layer(
            classifier, list(texts), reference, readout=readout, batch_size=batch_size
        )
        ids = [texts.ids[position] for position in found.position]
        rows += found.assign(id=ids, readout=readout).to_dict("records")
    return in_order(rows)
