"""`attribute`, which runs a method by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lrputils.attribution.registry import METHODS, Method, options_in
from lrputils.attribution.relevance import lrp
from lrputils.model.architectures import describe
from lrputils.model.handles import Handle
from lrputils.model.readout import Target
from lrputils.propagation.composites import Composite


@torch.inference_mode(False)
def attribute(
    model: Handle,
    inputs: Mapping[str, Any],
    method: str | Composite,
    *,
    target: Target = None,
    special_tokens: bool = True,
    **options: Any,
) -> Tensor:
    """Score every token of every text by one method.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: what the tokenizer gives: `input_ids` `(batch, tokens)`, `attention_mask`, …; for
            ViT `pixel_values`, and the tokens are [CLS] and the patches.
        method: a name in `METHODS`, or a `Composite`.
        target: the class to explain, one for all rows or one a row; for a language model the next
            token's id. None is the class predicted on the whole input.
        special_tokens: False sets the scores of special tokens to 0.
        options: the method's own, see `METHODS[method].options`.

    Returns:
        float32 `(batch, tokens)` on the model's device, exactly 0 at padding.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown method or option, or inputs that do not fit the model.
    """
    if isinstance(method, Composite):
        known = {name: o for name, o in options_in(lrp).items() if name != "composite"}
        chosen, fixed = Method("composite", "LRP", None, lrp, known), {"composite": method}
    else:
        chosen, fixed = _method(method), {}
    arguments = chosen.with_defaults(options) | fixed
    scores = chosen.function(describe(model), inputs, target=target, **arguments)
    scores = scores.to(torch.float32)
    return scores if special_tokens else _without_special(scores, inputs)


def _method(name: str) -> Method:
    if not isinstance(name, str) or name not in METHODS:
        raise ValueError(f"unknown method {name!r}; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]


def _without_special(scores: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    special = inputs.get("special_tokens_mask")
    if special is None:
        raise ValueError(
            "special_tokens=False needs inputs['special_tokens_mask']: pass "
            "return_special_tokens_mask=True to the tokenizer"
        )
    return scores.masked_fill(special.to(scores.device).bool(), 0.0)
