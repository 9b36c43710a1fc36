"""The attribution methods by their names: `attribute`, and the files that enter them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.methods import lrp
from lrputils.attribution.registry import METHODS, Method, Option, method, options_in
from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.inputs import Inputs
from lrputils.model.inputs import special_tokens as special_in
from lrputils.model.proof import alone, prove_batch
from lrputils.model.readout import Contrast, Target
from lrputils.model.units import Spans, check_units
from lrputils.propagation.composites import Composite

__all__ = ["METHODS", "Method", "Option", "attribute", "method"]


@torch.inference_mode(False)
def attribute(
    model: Handle,
    inputs: Mapping[str, Any],
    method: str | Composite,
    *,
    target: Target = None,
    units: str | Spans = "token",
    special_tokens: bool = True,
    **options: Any,
) -> Tensor:
    """Score every token of every text by one method.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `describe`).
        inputs: what the tokenizer gives: `input_ids` `(batch, tokens)`, `attention_mask`, …; for
            ViT `pixel_values`, and the tokens are [CLS] and the patches.
        method: a name in `METHODS`, or a `Composite`.
        target: the class to explain, one for all rows or one a row; for a language model the next
            token's id. None is the class predicted on the whole input.
        units: what is scored: each "token", "word" or "sentence", or spans of characters (see
            `Inputs.units`). LOO and Shapley values remove a unit at once; other maps are summed
            over it. The score stands at the unit's first token, 0 at the others.
        special_tokens: False sets the scores of special tokens to 0.
        options: the method's own, see `METHODS[method].options`.

    Returns:
        float32 `(batch, tokens)` on the model's device, exactly 0 at padding.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown method or option, or inputs that do not fit the model.
    """
    if isinstance(method, Composite):
        chosen = Method("composite", "LRP", None, partial(lrp, composite=method), options_in(lrp))
    else:
        chosen = METHODS.find(method)
    arguments = chosen.with_defaults(options)
    units = check_units(units)
    summed = units != "token" and "units" not in chosen.options
    over = Inputs.of(inputs).units(units) if summed else None
    if "units" in chosen.options:
        arguments["units"] = units
    architecture = describe(model)
    if prove_batch(architecture, inputs).together:
        scores = chosen.function(architecture, inputs, target=target, **arguments)
    else:
        scores = _each_alone(chosen, architecture, inputs, target, arguments)
    scores = scores.to(torch.float32)
    if over:
        return over.sum(scores)
    if special_tokens or units != "token":
        return scores
    return scores.masked_fill(special_in(inputs).to(scores.device), 0.0)


def _each_alone(
    chosen: Method,
    architecture: Architecture,
    inputs: Mapping[str, Any],
    target: Target,
    arguments: Mapping[str, Any],
) -> torch.Tensor:
    """The scores of a batch whose texts the model reads otherwise beside each other."""
    one = target is None or isinstance(target, int | str | Contrast) or not len(target)
    spans = arguments.get("units", "")
    rows = []
    for number, (text, place) in enumerate(alone(inputs)):
        own = {} if isinstance(spans, str) else {"units": [spans[number]]}
        of_text = target if one else target[number : number + 1]  # type: ignore[index]
        scores = chosen.function(architecture, text, target=of_text, **{**arguments, **own})
        rows.append(scores.new_zeros(place.shape).masked_scatter(place.to(scores.device), scores))
    return torch.stack(rows)
