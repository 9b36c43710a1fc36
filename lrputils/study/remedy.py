"""Estimates of leave-one-out at a cost: every text's map under each setting of the mask gradient.

Cost is counted in forward passes of one text, a backward pass as two, and measured in processor
seconds. `lrputils.study.frontier` compares the maps with leave-one-out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import torch

from lrputils.attribution import attribute
from lrputils.data.texts import Texts
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.study.by_text import in_order, predicted

# Options of `mask_gradient` by the name of the setting.
SETTINGS: dict[str, dict[str, Any]] = {
    "one-pass": {},
    "first-order": {"form": "first-order"},
    "halves": {"groups": 2},
    "quarters": {"groups": 4},
    "eighths": {"groups": 8},
}
# A name → the groups of the mean with one open pass, which two settings' rows hold already.
MEANS = {f"one + {name}": SETTINGS[name]["groups"] for name in ("halves", "quarters", "eighths")}
EXACT = "loo"
# A forward and a backward pass, counted in forward passes.
BOTH = 3


def passes(options: Mapping[str, Any]) -> int:
    """How many forward passes of a text `mask_gradient` costs with these options.

    The pass that finds the predicted class is not counted: what reads an explanation has it.
    """
    return BOTH * ((options.get("groups") or 1) + bool(options.get("with_open")))


def refuse_unknown(settings: Sequence[str]) -> None:
    """Raise ValueError if one is no setting, or there is none."""
    strays = [name for name in settings if name not in (*SETTINGS, EXACT)]
    if strays or not settings:
        raise ValueError(f"unknown setting(s) {strays or ''}; choose from {[*SETTINGS, EXACT]}")


def maps(
    classifier: Classifier,
    texts: Texts,
    settings: Sequence[str] = tuple(SETTINGS),
    *,
    batch_size: int = 16,
    max_length: int | None = None,
) -> pd.DataFrame:
    """Return every text's map under each setting, the predicted class explained.

    `settings` are names from `SETTINGS`, and "loo" for leave-one-out itself; longer texts are cut.

    Returns:
        one row a text and setting: `id`, `target`, `label`, `setting`, `passes`, `seconds` (of the
        processor, the batch's shared among its texts by their tokens), `scores` and `content`,
        arrays (tokens,).

    Raises:
        ValueError: see `refuse_unknown`.
    """
    refuse_unknown(settings)
    rows = []
    for inputs, target, texts_rows in predicted(classifier, texts, batch_size, max_length):
        total = int(inputs.lengths.sum())
        measured = list(_measured(classifier, inputs, target, settings))
        for number, row in enumerate(texts_rows):
            length = len(row["content"])
            rows += [
                {
                    **row,
                    "setting": name,
                    "passes": cost or length,
                    "seconds": round(seconds * length / total, 4),
                    "scores": scores[number, :length].cpu().numpy(),
                }
                for name, cost, seconds, scores in measured
            ]
    return in_order(rows, "logit")


def _measured(
    classifier: Classifier, inputs: Inputs, target: torch.Tensor, settings: Sequence[str]
) -> Iterator[tuple[str, int, float, torch.Tensor]]:
    """Name, passes (0: one a token), seconds of the batch and scores of each setting."""
    for name in settings:
        options = {"progress": False} if name == EXACT else SETTINGS[name]
        cost = 0 if name == EXACT else passes(options)
        method = EXACT if name == EXACT else "mask-gradient"
        began = time.process_time()
        scores = attribute(classifier.model, inputs, method, target=target, **options)
        yield name, cost, time.process_time() - began, scores
