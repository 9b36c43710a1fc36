"""Why the predicted class turns AttnLRP's and CP-LRP's order over all tokens: two interventions.

`appended`: a sentence that speaks for one of the classes, or for neither, stands behind the text.
It changes how sure the model is, and leaves the text's own tokens where they are. The sentences of
a triple have as many tokens.

`moved`: the position and type vector of the first token, which never vary, are added to its word's
vector and taken from where they were. Every hidden state stays, up to rounding, and so do f and
leave-one-out; what a map read at the words gives that token does not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from experiments.by_text import in_batches
from experiments.conventions import lrp_everywhere
from experiments.recordings.epsilon import LRP
from lrputils import stats
from lrputils.attribution import attribute
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import run
from lrputils.model.inputs import Inputs
from lrputils.model.readout import explained
from lrputils.removal.leave_one_out import leave_one_out

PLACES = ("word", "sum")
# Triples: a sentence for the negative class, for neither, for the positive class.
SENTENCES = (
    ("it is a bad film .", "it is a new film .", "it is a great film ."),
    ("we hated it at home .", "we watched it at home .", "we loved it at home ."),
)
_LEANINGS = ("same", "neutral", "other")


@in_batches("id", "target", "logit")
def appended(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    leanings: Sequence[str] = _LEANINGS,
    triples: Sequence[int] = tuple(range(len(SENTENCES))),
) -> Iterator[dict[str, Any]]:
    """Return a row a text, sentence behind it, method and read-out; longer texts are cut.

    The class predicted without the sentence is explained.

    Args:
        leanings: the sentence speaks for the "same" class, for the "other", or is "neutral".
        triples: of `SENTENCES`, which it is taken from.

    Returns:
        `id`, `target`, `logit` (without the sentence); `leaning`, `triple`, `after` (the logit with
        it), `kept` (whether the class is still predicted); `method` ("attnlrp", "cp-lrp",
        "mask-gradient" or "loo"), `readout`; `r` and `r_content` with leave-one-out; `first`, how
        many standard deviations of the own tokens' scores the first token's lies above their mean.
    """
    texts = [*zip((source.text for source in inputs.sources), target.tolist(), strict=True)]
    for triple, leaning in product(triples, leanings):
        longer = [f"{text} {_sentence(triple, leaning, own)}" for text, own in texts]
        inputs = classifier.encode(longer, truncate=True)
        with torch.inference_mode():
            logits = run(classifier.architecture, classifier.architecture.arguments(inputs))
        maps = _maps(classifier, inputs, target)
        for (method, place), scores in maps.items():
            yield {
                "leaning": leaning,
                "triple": triple,
                "after": explained(logits, target),
                "kept": logits.argmax(1) == target,
                "method": method,
                "readout": place,
                "r": stats.pearson(scores, maps["loo", ""], inputs.valid_mask),
                "r_content": stats.pearson(scores, maps["loo", ""], inputs.content_mask),
                "first": _standing(scores, inputs),
            }


def _sentence(triple: int, leaning: str, target: int) -> str:
    speaks_for = {"same": target, "other": 1 - target}
    return SENTENCES[triple][{0: 0, 1: 2}.get(speaks_for.get(leaning), 1)]


def _maps(classifier: Classifier, inputs: Inputs, target: Tensor) -> dict[tuple[str, str], Tensor]:
    """Leave-one-out, the mask gradient, and both LRPs at each read-out of `PLACES`."""
    model, how = classifier.model, {"target": target}
    maps = {("loo", ""): leave_one_out(model, inputs, progress=False, **how)}
    maps["mask-gradient", ""] = attribute(model, inputs, "mask-gradient", **how)
    for method, composite in LRP.items():
        found = lrp_everywhere(model, inputs, composite, target)
        maps |= {(method, place): found[place] for place in PLACES}
    return maps


def _standing(scores: Tensor, inputs: Inputs) -> Tensor:
    """How far the first token's score lies from the own tokens' mean, in their deviations."""
    own = scores.double().masked_fill(~inputs.content_mask, torch.nan)
    mean = own.nanmean(1)
    deviation = (own - mean[:, None]).square().nanmean(1).sqrt()
    return (scores[:, 0] - mean) / deviation


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
