"""Speed, measured side by side: each claim is a ratio of two runs of the same work, in turn.

Both sides run in this process, A B A B …, after one uncounted run of each; a ratio is taken pair by
pair, so that a machine whose speed drifts does not decide. Where both sides compute the same thing
their outputs are compared, and a ratio without agreement is not reported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from lrputils.attribution import attribute
from lrputils.data.texts import load_texts
from lrputils.inputs import Inputs
from lrputils.layerwise import layerwise_bypass
from lrputils.models import Classifier, load_classifier
from lrputils.removal import leave_one_out


@dataclass(frozen=True)
class Comparison:
    """Two ways to do a piece of work.

    Attributes:
        name: what is compared.
        ours: the work, this package's way.
        other: the work, the way it is held against.
        tolerance: largest difference of the outputs, relative to the largest output; None where
            the two sides compute different things on purpose.
    """

    name: str
    ours: Callable[[], Tensor]
    other: Callable[[], Tensor]
    tolerance: float | None = None


def compare(comparison: Comparison, repeats: int = 7) -> dict[str, float | str]:
    """Time both sides in turn; return seconds, the ratio ours/other, and the outputs' difference.

    The ratio is the median of the pairwise ratios; `low` and `high` are their extremes.

    Raises:
        ArithmeticError: the outputs differ by more than the tolerance.
    """
    outputs = comparison.ours(), comparison.other()
    difference = float("nan")
    if comparison.tolerance is not None:
        difference = float((outputs[0] - outputs[1]).abs().max() / outputs[1].abs().max())
        if not difference <= comparison.tolerance:
            raise ArithmeticError(f"{comparison.name}: the outputs differ by {difference:.1e}")
    pairs = np.array(
        [(_seconds(comparison.ours), _seconds(comparison.other)) for _ in range(repeats)]
    )
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


def _seconds(work: Callable[[], Tensor]) -> float:
    _wait()
    started = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - started


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def plain_gradient(classifier: Classifier, inputs: Inputs) -> Tensor:
    """A forward and a backward pass without any rule: gradient at the embeddings, summed."""
    caught: list[Tensor] = []

    def catch(module, arguments, output: Tensor) -> Tensor:
        caught.append(output.detach().requires_grad_())
        return caught[0]

    hook = classifier.architecture.word_embeddings.register_forward_hook(catch)
    try:
        logits = classifier.model(**inputs.model_kwargs()).logits
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(logits.amax(dim=1).sum(), caught[0])
    return (gradient * caught[0].detach()).sum(-1)


def masked_loo(classifier: Classifier, inputs: Inputs) -> Tensor:
    """Leave-one-out of the first text's own tokens, one masked forward pass a token."""
    arguments = inputs.rows(0).model_kwargs()
    with torch.inference_mode():
        whole = classifier.model(**arguments).logits[0]
        target, scores = int(whole.argmax()), []
        for token in inputs.rows(0).content_mask[0].nonzero().flatten().tolist():
            mask = arguments["attention_mask"].clone()
            mask[0, token] = 0
            changed = classifier.model(**{**arguments, "attention_mask": mask})
            scores.append(whole[target] - changed.logits[0, target])
    return torch.stack(scores)


def comparisons(classifier: Classifier, inputs: Inputs) -> list[Comparison]:
    """Return what `lrputils bench` measures, on one batch of texts."""
    model, first = classifier.model, inputs.rows(0)
    layers = classifier.architecture.layers
    families = [
        *(frozenset(range(k + 1)) for k in range(layers)),
        *(frozenset(range(k, layers)) for k in range(layers)),
        *(frozenset({k}) for k in range(layers)),
    ]

    def separately() -> Tensor:
        maps = [attribute(model, inputs, "attnlrp", bypass_layers=chosen) for chosen in families]
        return torch.stack(maps)

    return [
        Comparison(
            f"{method} / plain forward + backward",
            lambda method=method: attribute(model, inputs, method),
            lambda: plain_gradient(classifier, inputs),
        )
        for method in ("attnlrp", "cp-lrp")
    ] + [
        Comparison(
            "LOO / one masked pass a token",
            lambda: leave_one_out(model, first)[first.content_mask],
            lambda: masked_loo(classifier, inputs),
            tolerance=1e-3,
        ),
        Comparison(
            f"{len(families)} bypass variants at once / one by one",
            lambda: layerwise_bypass(model, inputs, families),
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
    rows = [compare(comparison, repeats) for comparison in work]
    return pd.DataFrame(rows).set_index("what")
