"""Where tokens interact: exact leave-two-out with the pair hidden from layer l on.

I_ij(l) = LOO_ij − LOO_i − LOO_j, each with the keys hidden in layers l to the last, exact. What
I_ij(l) − I_ij(l + 1) holds is what layer l adds to the interaction of i and j.
"""

from __future__ import annotations

import pandas as pd
import torch

from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.study.by_text import in_order, predicted
from recipes.recordings.hiding import losses


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text, layer (from 1) and pair i < j of the text's own tokens.

    Returns:
        `id`, `layer`, `i` and `j` (their place in the text), `interaction`, `loo_i`, `loo_j`.
    """
    rows = []
    for inputs, _, of_texts in predicted(classifier, texts, batch_size, max_length):
        for number, row in enumerate(of_texts):
            ids = inputs["input_ids"][number, : len(row["content"])]
            own = torch.from_numpy(row["content"]).nonzero()[:, 0]
            pairs = torch.combinations(own)
            singles = torch.eye(len(ids), dtype=torch.bool)
            keys = torch.cat([singles, singles[pairs[:, 0]] | singles[pairs[:, 1]]]).to(ids.device)
            for layer in range(classifier.architecture.layers):
                lost = losses(classifier, ids, row["target"], layer, keys).cpu()
                single, both = lost[: len(ids)], lost[len(ids) :]
                one, other = single[pairs[:, 0]], single[pairs[:, 1]]
                told = {"position": row["position"], "id": row["id"], "layer": layer + 1}
                rows.append(
                    pd.DataFrame(
                        {
                            **told,
                            "i": pairs[:, 0],
                            "j": pairs[:, 1],
                            "interaction": both - one - other,
                            "loo_i": one,
                            "loo_j": other,
                        }
                    )
                )
    return in_order(pd.concat(rows).to_dict("records"))
