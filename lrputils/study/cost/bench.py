"""Speed, measured side by side: each claim is a ratio of two runs of the same work, in turn.

Both sides run in this process, A B A B …, after one uncounted run of each. The ratio is taken pair
by pair, so that it does not depend on a machine whose speed drifts. Where both sides compute the
same thing, their outputs have to agree.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.model.classifier import Classifier, load_classifier
from lrputils.model.inputs import Inputs
from lrputils.propagation.layerwise import layerwise_bypass
from lrputils.removal.leave_one_out import leave_one_out
from lrputils.study.cost.clock import timed
from lrputils.study.variants import layer_sets


@dataclass(frozen=True)
class Comparison:
    """Two ways to do a piece of work.

    Attributes:
        name: what is compared.
        ours: the work, this package's way.
        other: the work, the way it is compared with.
        tolerance: largest difference of the outputs, relative to the largest output; None where
            the two sides compute different things on purpose.
    """

    name: str
    ours: Callable[[], Tensor]
    other: Callable[[], Tensor]
    tolerance: float | None = None


def compare(
    comparison: Comparison, repeats: int = 7, device: str | torch.device = "cpu"
) -> dict[str, float | str]:
    """Time both sides in turn; return seconds, the ratio ours/other, and the outputs' difference.

    The ratio is the median of the pairwise ratios; `low` and `high` are their extremes.

    Raises:
        ArithmeticError: the outputs differ by more than the tolerance.
    """
    sides = comparison.ours, comparison.other
    ours, other = (work() for work in sides)
    difference = float("nan")
    if comparison.tolerance is not None:
        difference = float((ours - other).abs().max() / other.abs().max())
        if not difference <= comparison.tolerance:
            raise ArithmeticError(f"{comparison.name}: the outputs differ by {difference:.1e}")
    pairs = np.array([[timed(device, work)[0] for work in sides] for _ in range(repeats)])
    ratios = pairs[:, 0] / pairs[:, 1]
    return {
        "what": comparison.name,
        "ours s": float(np.median(pairs[:, 0])),
        "other s": float(np.median(pairs[:, 1])),
        "ours/other": float(np.median(ratios)),
        "low": float(ratios.min()),
        "high": float(ratios.max()),
        "difference": difference,
    }


def plain_gradient(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Gradient × input at the word embeddings, by a forward and a backward pass without any rule.

    Written apart from the package's methods, as the other side of a comparison has to be.
    """
    arguments = inputs.model_kwargs()
    words = classifier.architecture.word_embeddings(arguments.pop("input_ids")).detach()
    words.requires_grad_()
    logits = classifier.model(inputs_embeds=words, **arguments).logits
    (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), words)
    return (gradient * words.detach()).sum(-1)


def masked_loo(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Leave-one-out of the first text's own tokens, one masked forward pass a token."""
    text = inputs.rows(0)
    arguments = text.model_kwargs()
    with torch.inference_mode():
        whole = classifier.model(**arguments).logits[0]
        target, scores = int(whole.argmax()), []
        for token in text.content_mask[0].nonzero().flatten().tolist():
            mask = arguments["attention_mask"].clone()
            mask[0, token] = 0
            changed = classifier.model(**{**arguments, "attention_mask": mask})
            scores.append(whole[target] - changed.logits[0, target])
    return torch.stack(scores)


def comparisons(classifier: Classifier, inputs: Inputs) -> list[Comparison]:
    """Return what `lrputils bench` measures, on one batch of texts."""
    model, first = classifier.model, inputs.rows(0)
    sets = list(layer_sets(classifier.architecture.layers).values())

    def separately() -> Tensor:
        maps = [attribute(model, inputs, "attnlrp", bypass_layers=chosen) for chosen in sets]
        return torch.stack(maps)

    plain = partial(plain_gradient, classifier, inputs)
    return [
        *(
            Comparison(
                f"{m} / plain forward + backward", partial(attribute, model, inputs, m), plain
            )
            for m in ("attnlrp", "cp-lrp")
        ),
        Comparison(
            "LOO / one masked pass a token",
            lambda: leave_one_out(model, first)[first.content_mask],
            partial(masked_loo, classifier, inputs),
            tolerance=1e-3,
        ),
        Comparison(
            f"{len(sets)} bypass variants at once / one by one",
            partial(layerwise_bypass, model, inputs, sets),
            separately,
            tolerance=1e-5,
        ),
    ]


def bench(
    model: str | None = None, *, dataset: str = "reviews-long", texts: int = 4, repeats: int = 7
) -> pd.DataFrame:
    """Measure every comparison on the first texts of a data set; return a row for each."""
    classifier = load_classifier(model)
    inputs = classifier.encode(load_texts(dataset, limit=texts), truncate=True)
    work = tqdm(comparisons(classifier, inputs), desc="comparisons", file=sys.stderr)
    rows = [compare(comparison, repeats, classifier.device) for comparison in work]
    return pd.DataFrame(rows).set_index("what")
