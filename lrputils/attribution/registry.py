"""The named methods, and `attribute`, which runs one by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lrputils.architectures import Architecture, describe
from lrputils.attribution.attention_maps import attention_x_grad, rollout
from lrputils.attribution.gradients import (
    BATCH_TOKENS,
    grad_x_input,
    integrated_gradients,
    smoothgrad,
)
from lrputils.attribution.relevance import attnlrp, cp_lrp, lrp
from lrputils.mask_gradient import mask_gradient
from lrputils.propagation import Composite
from lrputils.readout import READOUTS, Target
from lrputils.removal import leave_one_out


@dataclass(frozen=True)
class Option:
    """A named option of a method: its default, and what it chooses."""

    default: Any
    doc: str


@dataclass(frozen=True)
class Method:
    """An attribution method.

    Attributes:
        name: how `attribute` knows it.
        label: how tables and figures call it.
        function: `(architecture, inputs, target, **options)` → scores `(batch, tokens)`.
        options: name → default and documentation.
    """

    name: str
    label: str
    function: Callable[..., Tensor]
    options: Mapping[str, Option]

    def with_defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those that are not given at their defaults.

        Raises:
            ValueError: an option that this method does not have; the message lists its own.
        """
        for name in options:
            if name not in self.options:
                known = ", ".join(f"{k}={v.default!r}" for k, v in self.options.items()) or "none"
                raise ValueError(f"{self.name!r} has no option {name!r}; its options: {known}")
        return {name: option.default for name, option in self.options.items()} | dict(options)


def _ig(architecture: Architecture, inputs: Mapping, target: Target, **options: Any) -> Tensor:
    tolerance = options.pop("tolerance")
    result = integrated_gradients(architecture.model, inputs, target, **options)
    far = (result.gap.abs() > tolerance) if tolerance is not None else result.gap.isnan()
    if bool(far.any()):
        worst = int(result.gap.abs().argmax())
        raise ValueError(
            f"Integrated Gradients are not complete: in row {worst} they sum to "
            f"{float(result.scores[worst].sum()):.4g}, and f(x) − f(baseline) is "
            f"{float(result.change[worst]):.4g}. Take more than {options['steps']} steps"
        )
    return result.scores


def _loo(architecture: Architecture, inputs: Mapping, target: Target, **options: Any) -> Tensor:
    return leave_one_out(architecture.model, inputs, target=target, **options)


def _gated(architecture: Architecture, inputs: Mapping, target: Target, **options: Any) -> Tensor:
    return mask_gradient(architecture.model, inputs, target=target, **options)


_READOUT = Option("word", "where relevance is read: " + "; ".join(f"{k!r}" for k in READOUTS))
_BATCH_TOKENS = Option(BATCH_TOKENS, "tokens that go through the model at once")

_EVERY = (
    Method(
        "loo",
        "LOO",
        _loo,
        {
            "removal": Option("attention-mask", "or 'mask', 'pad', 'unk', 'zero', 'delete'"),
            "output": Option("logit", "or 'difference', 'probability'"),
            "batch_tokens": Option(None, "tokens in one batch; None suits the device"),
            "progress": Option(True, "draw a bar on a terminal where it takes some seconds"),
        },
    ),
    Method("grad-x-input", "Gradient × input", grad_x_input, {"readout": _READOUT}),
    Method(
        "ig",
        "Integrated Gradients",
        _ig,
        {
            "baseline": Option("pad", "'pad', 'zero', 'mask' or a token id"),
            "steps": Option(32, "points of the quadrature"),
            "quadrature": Option("midpoint", "or 'right', 'gauss-legendre'"),
            "tolerance": Option(None, "the largest completeness gap that is not an error"),
            "batch_tokens": _BATCH_TOKENS,
        },
    ),
    Method(
        "smoothgrad",
        "SmoothGrad × input",
        smoothgrad,
        {
            "samples": Option(16, "noisy copies of each text"),
            "noise": Option(0.1, "standard deviation, as a share of the embeddings' range"),
            "seed": Option(0, "seed of the noise"),
            "batch_tokens": _BATCH_TOKENS,
        },
    ),
    Method(
        "rollout",
        "Attention Rollout",
        rollout,
        {"variant": Option("paper", "'paper' (no residual) or 'abnar'")},
    ),
    Method(
        "attention-x-grad",
        "Attention × gradient",
        attention_x_grad,
        {"rectify": Option(False, "count negative products as 0")},
    ),
    Method(
        "attnlrp",
        "AttnLRP",
        attnlrp,
        {
            "readout": _READOUT,
            "bypass_layers": Option((), "layers, from 0, whose attention gets CP-LRP's rule"),
        },
    ),
    Method("cp-lrp", "CP-LRP", cp_lrp, {"readout": _READOUT}),
    Method(
        "mask-gradient",
        "Mask gradient",
        _gated,
        {
            "form": Option("exact-block", "or 'first-order'"),
            "own_row": Option(False, "count the queries of the token itself"),
        },
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in _EVERY}


@torch.inference_mode(False)
def attribute(
    model: nn.Module,
    inputs: Mapping[str, Any],
    method: str | Composite,
    *,
    target: Target = None,
    special_tokens: bool = True,
    **options: Any,
) -> Tensor:
    """Score every token of every text by one method.

    Args:
        model: a covered Hugging Face model in evaluation mode, on any device.
        inputs: what the tokenizer gives: `input_ids` `(batch, tokens)`, `attention_mask`, …; for
            ViT `pixel_values`, and the tokens are [CLS] and the patches.
        method: a name in `METHODS`, or a `Composite` of one's own.
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
        chosen = Method("composite", "LRP", lrp, {"readout": _READOUT})
        fixed = {"composite": method}
    else:
        chosen, fixed = _method(method), {}
    arguments = chosen.with_defaults(options)
    architecture = describe(model)
    scores = chosen.function(architecture, inputs, target, **arguments, **fixed).to(torch.float32)
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
