"""Why the predicted class turns AttnLRP's and CP-LRP's order over all tokens: an intervention.

The position and type vector of the first token, which never vary, are added to its word's vector
and taken from where they were. Every hidden state stays, up to rounding, and so do f and
leave-one-out; what a map read at the words gives that token does not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from experiments.by_text import in_batches
from experiments.conventions import lrp_everywhere
from experiments.recordings.epsilon import LRP
from lrputils import stats
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.removal.leave_one_out import leave_one_out

PLACES = ("word", "sum")


def _maps(classifier: Classifier, inputs: Inputs, target: Tensor) -> dict[tuple[str, str], Tensor]:
    """Leave-one-out, and both LRPs at each read-out of `PLACES`."""
    model, how = classifier.model, {"target": target}
    maps = {("loo", ""): leave_one_out(model, inputs, progress=False, **how)}
    for method, composite in LRP.items():
        found = lrp_everywhere(model, inputs, composite, target)
        maps |= {(method, place): found[place] for place in PLACES}
    return maps


@in_batches("id", "target", "logit")
def moved(classifier: Classifier, inputs: Inputs, target: Tensor) -> Iterator[dict[str, Any]]:
    """Return a row a text, method and read-out; longer texts are cut.

    Returns:
        `id`, `target`, `logit`; `method`, `readout`; `r` with leave-one-out over all tokens of the
        model as it is, `r_moved` of the one that `_move_first` gives; `loo_change`, the largest
        change of a leave-one-out score, as a share of the largest score.
    """
    other = _move_first(classifier)
    before, after = (_maps(each, inputs, target) for each in (classifier, other))
    loo = before["loo", ""]
    change = (after["loo", ""] - loo).abs().amax(1) / loo.abs().amax(1)
    for method, place in before:
        if method in LRP:
            yield {
                "method": method,
                "readout": place,
                "r": stats.pearson(before[method, place], loo, inputs.valid_mask),
                "r_moved": stats.pearson(after[method, place], after["loo", ""], inputs.valid_mask),
                "loo_change": change,
            }


def _move_first(classifier: Classifier) -> Classifier:
    """Return a copy that reads the first token's position and type from its word's vector.

    Of an encoder whose first token is the same in every text: BERT's [CLS], MPNet's <s>.
    """
    other = Classifier(copy.deepcopy(classifier.model), classifier.tokenizer, classifier.name)
    first = other.encode(["a"])["input_ids"][:, :1]
    place = other.architecture.position_ids(first, torch.ones_like(first))
    parts = other.architecture.backbone.embeddings
    words, places = parts.word_embeddings.weight, parts.position_embeddings.weight
    types = getattr(parts, "token_type_embeddings", None)
    with torch.no_grad():
        kind = torch.zeros_like(words[0]) if types is None else types.weight[0]
        words[first] += places[place] + kind
        places[place] = -kind
    return other
