"""What is lost while one token is hidden by degrees: does the path to leave-one-out bend?

Hidden by t, a token is on the path from the whole text (t = 0) to leave-one-out (t = 1): each
attention block gives 1 − t of its output and t of its output without the token's key, as in
half-removal of a single token (`lrputils.removal.mask_gradient`). The mask gradient is the slope at
t = 0, and falls short of leave-one-out where most is lost late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.by_text import in_batches
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs, tensor_rows
from lrputils.model.operations import routed
from lrputils.model.proof import run_batch
from lrputils.model.readout import explained
from lrputils.removal.mask_gradient import Gates

_TOKENS = 1024  # at once: on a CPU more take longer


@in_batches("id", "target", "label", "logit", "content")
def measure(
    classifier: Classifier,
    inputs: Inputs,
    target: Tensor,
    *,
    degrees: Sequence[float] = (0.1, 0.25, 0.5, 0.9),
) -> Iterator[dict[str, Any]]:
    """Return a row a text and degree: f less f with one own token hidden by it, for each token.

    Args:
        classifier: `load_classifier`'s answer.
        inputs: of a batch of the texts; longer ones are cut.
        target: the predicted classes.
        degrees: by how much a token is hidden, each above 0 and at most 1.

    Returns:
        `id`, `target`, `label`, `logit`, `content`; `degree`; `scores` in logits, NaN at special
        tokens.

    Raises:
        ValueError: a degree outside (0, 1].
    """
    if not all(0 < degree <= 1 for degree in degrees):
        raise ValueError(f"degrees={[*degrees]} are not all above 0 and at most 1")
    for degree in degrees:
        scores = torch.full(inputs["input_ids"].shape, torch.nan)
        for number, own in enumerate(inputs.content_mask.cpu()):
            text, chosen = inputs.rows(number), target[number : number + 1]
            tokens = own.nonzero()[:, 0]
            scores[number, tokens] = loss_by_token(classifier, text, chosen, tokens, degree)
        yield {"degree": degree, "scores": scores}


@torch.inference_mode()
def loss_by_token(
    classifier: Classifier, inputs: Inputs, target: Tensor, tokens: Tensor, degree: float
) -> Tensor:
    """f less f with each of these tokens of one text hidden by `degree`, (tokens,), in logits."""
    architecture = classifier.architecture
    whole = explained(run_batch(architecture, inputs), target)
    length = inputs["input_ids"].shape[1]
    lost = []
    for some in tokens.split(max(1, _TOKENS // length)):
        closed = torch.zeros(len(some), length)
        closed[torch.arange(len(some)), some] = degree
        row = torch.zeros(len(some), dtype=torch.long)
        with routed(architecture, Gates(closed=closed)):
            logits = run_batch(architecture, tensor_rows(inputs, row))
        lost.append(whole - explained(logits, target[row]))
    return torch.cat(lost).float().cpu()
