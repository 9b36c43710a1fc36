"""What is lost while one token is hidden by degrees: does the path to leave-one-out bend?

Hidden by t, a token is on the path from the whole text (t = 0) to leave-one-out (t = 1): each
attention block gives 1 − t of its output and t of its output without the token's key, as in
half-removal of a single token (`lrputils.removal.mask_gradient`). The mask gradient is the slope at
t = 0, and falls short of leave-one-out where most is lost late.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from experiments.by_text import in_order
from experiments.frame import recorded_loo
from experiments.recordings.language import LABELS
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs, tensor_rows
from lrputils.model.operations import routed
from lrputils.model.proof import run_batch
from lrputils.model.readout import explained
from lrputils.removal.mask_gradient import Gates
from lrputils.study.by_text import predicted

_FACTS = ("id", "target", "label", "logit", "content")
_TOKENS = 1024  # at once: on a CPU more take longer


def measure(
    classifier: Classifier,
    texts: Texts,
    *,
    degrees: Sequence[float] = (0.1, 0.25, 0.5, 0.9),
    template: str | None = None,
    labels: Sequence[str] = LABELS,
    run: str | None = None,
    words: int | None = None,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return a row a text and degree: f less f with one own token hidden by it, for each token.

    Args:
        classifier: `load_classifier`'s answer.
        texts: what is measured; longer ones are cut.
        degrees: by how much a token is hidden, each above 0 and at most 1.
        template: of a language model, the prompt around each text: f is the difference of the two
            labels' logits. None: f is the predicted class's logit.
        labels: of a language model, a token each, negative first.
        run: of `results/maps`, whose leave-one-out chooses the `words`.
        words: hide only so many of a text's own tokens, at even ranks by their size in `run`, the
            largest first. None: all.
        batch_size: texts a batch.
        max_length: in tokens.

    Returns:
        `id`, `target`, `label`, `logit`, `content`; `degree`; `scores` in logits, NaN at tokens
        that were not hidden.

    Raises:
        ValueError: a degree outside (0, 1], or one of `run` and `words` without the other.
    """
    if not all(0 < degree <= 1 for degree in degrees):
        raise ValueError(f"degrees={[*degrees]} are not all above 0 and at most 1")
    if (run is None) != (words is None):
        raise ValueError("words= are chosen by the leave-one-out of run=: give both or neither")
    exact = None if run is None else recorded_loo(run)
    if template is not None:
        classifier = classifier.zero_shot(template, labels)
    rows = []
    for inputs, target, facts in predicted(classifier, texts, batch_size, max_length):
        chosen = target if template is None else torch.stack([target, target - 2], 1)
        for number, fact in enumerate(facts):
            tokens = np.flatnonzero(fact["content"])
            if exact is not None:
                tokens = tokens[np.argsort(-np.abs(exact[fact["id"]][tokens]), kind="stable")]
                ranks = np.linspace(0, len(tokens) - 1, words).round().astype(int)
                tokens = tokens[np.unique(ranks)]
            text, explains = inputs.rows(number), chosen[number : number + 1]
            named = {name: fact[name] for name in ("position", *_FACTS)}
            for degree in degrees:
                scores = np.full(fact["tokens"], np.nan, np.float32)
                scores[tokens] = loss_by_token(classifier, text, explains, tokens, degree)
                rows.append({**named, "degree": degree, "scores": scores})
    return in_order(rows)


@torch.inference_mode()
def loss_by_token(
    classifier: Classifier, inputs: Inputs, target: Tensor, tokens: np.ndarray, degree: float
) -> Tensor:
    """f less f with each of these tokens of one text hidden by `degree`, (tokens,), in logits."""
    architecture = classifier.architecture
    whole = explained(run_batch(architecture, inputs), target)
    length = inputs["input_ids"].shape[1]
    lost = []
    for some in torch.as_tensor(tokens).split(max(1, _TOKENS // length)):
        closed = torch.zeros(len(some), length)
        closed[torch.arange(len(some)), some] = degree
        row = torch.zeros(len(some), dtype=torch.long)
        with routed(architecture, Gates(closed=closed)):
            logits = run_batch(architecture, tensor_rows(inputs, row))
        lost.append(whole - explained(logits, target[row]))
    return torch.cat(lost).float().cpu()
