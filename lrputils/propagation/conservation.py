"""A check of the rules on a model: CP-LRP without biases has to conserve relevance.

Under CP-LRP every operation is linear once the attention weights, gates, and deviations are held
constant, and the activations pass relevance through. Without biases nothing can absorb relevance,
so that at every layer Σ R equals the explained logit, up to rounding. A single operation without a
rule breaks that. AttnLRP has no such test: its softmax rule drops the bias of a Taylor expansion.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lrputils.model.architectures import Architecture, Handle, describe
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, Composite, propagating

# Gaps up to this size are rounding.
TOLERANCE = 1e-8


@dataclass(frozen=True)
class ConservationReport:
    """What `check` found.

    Attributes:
        logit_change: the largest change of the model's own logits while rules are installed.
        gaps: for each layer's input, from layer 0 on, the largest |Σ R / logit − 1| over the texts,
            for CP-LRP in a float64 copy without biases.
        attnlrp_gap: the same for AttnLRP at the first layer's input. It need not be small.
    """

    model: str
    family: str
    logit_change: float
    gaps: tuple[float, ...]
    attnlrp_gap: float

    @property
    def passed(self) -> bool:
        """Whether relevance is conserved down to the first layer's input."""
        return max(self.gaps) <= TOLERANCE

    def __str__(self) -> str:
        verdict = "conserves relevance" if self.passed else "LOSES OR MAKES relevance"
        lost = "  <-- not conserved"
        layers = [
            f"    layer {layer:>3}  off by {gap:.1e}{lost if gap > TOLERANCE else ''}"
            for layer, gap in enumerate(self.gaps)
        ]
        return "\n".join(
            [
                f"{self.model} ({self.family}, {len(self.gaps)} layers):",
                f"  CP-LRP without biases {verdict}",
                f"  logits while rules are installed: changed by at most {self.logit_change:.1e}",
                "  Σ R at each layer's input, relative to the logit:",
                *reversed(layers),
                f"  AttnLRP, whose softmax rule does not conserve: off by {self.attnlrp_gap:.1e}",
            ]
        )


@torch.inference_mode(False)
def check(
    model: Handle,
    inputs: Mapping[str, Any] | None = None,
    *,
    target: Target = None,
    composite: Composite = CP_LRP,
) -> ConservationReport:
    """Check the propagation rules on a model; `print(check(model))` shows the result.

    Works on a float64 copy on the CPU, so it needs memory for one; the model itself is not changed.
    Without `inputs` it takes two short random ones; `composite` should conserve: `CP_LRP`, or a
    variant under test.

    Raises:
        TypeError: the model is not covered; the message names the class and the reason.
    """
    architecture = describe(model)
    inputs = _random_inputs(architecture) if inputs is None else inputs
    plain = read(architecture, inputs, target=target)
    with propagating(architecture, composite):
        ruled = read(architecture, inputs, target=target)
    bare = describe(_without_biases(architecture.model))
    inputs = {k: v.cpu() for k, v in inputs.items() if isinstance(v, Tensor)}
    return ConservationReport(
        model=type(architecture.model).__name__,
        family=architecture.kind.name,
        logit_change=float((plain.logits - ruled.logits).abs().max()),
        gaps=_gaps(bare, inputs, plain.target.cpu(), composite),
        attnlrp_gap=_gaps(bare, inputs, plain.target.cpu(), ATTN_LRP)[0],
    )


def _gaps(
    architecture: Architecture, inputs: Mapping[str, Any], target: Tensor, composite: Composite
) -> tuple[float, ...]:
    with propagating(architecture, composite):
        reading = read(architecture, inputs, target=target)
        gradients = torch.autograd.grad(reading.output.sum(), reading.inputs)
    pairs = zip(reading.inputs, gradients, strict=True)
    totals = [(hidden * gradient).sum((1, 2)) for hidden, gradient in pairs]
    return tuple((total / reading.output - 1).abs().max().item() for total in totals)


def _without_biases(model: nn.Module) -> nn.Module:
    """A float64 copy on the CPU, its biases set to zero."""
    bare = copy.deepcopy(model).to("cpu", torch.float64)
    for name, parameter in bare.named_parameters():
        if name.rsplit(".", 1)[-1] == "bias":
            parameter.data.zero_()
    return bare


def _random_inputs(architecture: Architecture) -> dict[str, Tensor]:
    """Two random texts, or images: what the rules conserve does not depend on the input."""
    config = architecture.model.config
    generator = torch.Generator().manual_seed(0)
    if architecture.kind.vision:
        size = config.image_size
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        shape = (2, config.num_channels, height, width)
        return {"pixel_values": torch.randn(shape, generator=generator)}
    tokens = min(8, architecture.max_positions or 8)
    ids = torch.randint(config.vocab_size, (2, tokens), generator=generator)
    pad = config.pad_token_id
    ids[ids == pad] = 0 if pad != 0 else 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
