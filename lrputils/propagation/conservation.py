"""A check of the rules on a model: CP-LRP without constants has to conserve relevance.

Under CP-LRP every operation is linear once the attention weights, gates, and deviations are held
constant, and the activations pass relevance through. Without summands that do not depend on the
text (biases, positions) nothing can absorb relevance, so that at the words and at every layer Σ R
equals the explained logit, up to rounding. A single operation without a rule breaks that. AttnLRP
has no such test: its softmax rule drops the bias of a Taylor expansion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lrputils.model.architectures import Handle
from lrputils.model.proof import laid_out, short_text
from lrputils.model.readout import Target, read, readouts
from lrputils.propagation.composites import (
    ATTN_LRP,
    CP_LRP,
    TOLERANCE,
    Composite,
    conserved,
    installed,
    tolerance,
)

__all__ = ["TOLERANCE", "ConservationReport", "check"]


@dataclass(frozen=True)
class ConservationReport:
    """What `check` found.

    Attributes:
        logit_change: the largest change of the model's own logits while rules are installed.
        words: the largest |Σ R − logit| over the texts at the words, as a share of the relevance
            that flows there, for CP-LRP without constants.
        gaps: the same for each layer's input, from layer 0 on; none of a model that reads its words
            twice, in a decoder too, where no layer holds all that is read, or of states that are
            not (batch, tokens, size).
        attnlrp_gap: the same for AttnLRP at the words. It need not be small.
        operations: what was done with each operation on what depends on the text, by its name.
        tolerance: the largest gap that is rounding.
        layers: how many were found.
        readouts: where relevance can be read, see `READOUTS`.
    """

    model: str
    logit_change: float
    words: float
    gaps: tuple[float, ...]
    attnlrp_gap: float
    operations: Mapping[str, str]
    tolerance: float = TOLERANCE
    layers: int = 0
    readouts: tuple[str, ...] = ("word",)

    @property
    def passed(self) -> bool:
        """Whether relevance is conserved down to the words."""
        return max(self.words, *self.gaps, 0.0) <= self.tolerance

    def __str__(self) -> str:
        verdict = "conserves relevance" if self.passed else "LOSES OR MAKES relevance"
        places = {f"layer {layer:>3}": gap for layer, gap in enumerate(self.gaps)}
        lost = "  <-- not conserved"
        rows = [
            f"    {place:<9}  off by {gap:.1e}{lost if gap > self.tolerance else ''}"
            for place, gap in {"words": self.words, **places}.items()
        ]
        kinds: dict[str, list[str]] = {}
        for name, kind in self.operations.items():
            kinds.setdefault(kind, []).append(name.strip("_"))
        met = [f"    {kind}: {', '.join(sorted(set(names)))}" for kind, names in kinds.items()]
        return "\n".join(
            [
                f"{self.model} ({self.layers} layers, read at: {', '.join(self.readouts)}):",
                f"  {'passed' if self.passed else 'FAILED'}: CP-LRP without constants {verdict}",
                f"  logits while rules are installed: changed by at most {self.logit_change:.1e}",
                "  Σ R less the logit, as a share of what flows:",
                *reversed(rows),
                f"  AttnLRP, whose softmax loses some, as expected: off by {self.attnlrp_gap:.1e}",
                "  operations on what depends on the text, and what is done with them:",
                *met,
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

    Works on the model as it is, operation by operation, and changes nothing. Without `inputs` it
    takes a short random one; `composite` should conserve: `CP_LRP`, or a variant under test.

    Raises:
        TypeError: an operation has no rule; the message names it.
        ValueError: the model does not run, or what `read` refuses.
    """
    architecture = laid_out(model)
    inputs = short_text(architecture) if inputs is None else inputs
    plain = read(architecture, inputs, target=target)
    with installed(architecture, composite.rule):
        ruled = read(architecture, inputs, target=target)
    gaps, operations = conserved(architecture, inputs, plain.target, composite)
    return ConservationReport(
        model=type(architecture.model).__name__,
        logit_change=float((plain.logits - ruled.logits).abs().max()),
        words=gaps[0],
        gaps=gaps[1:],
        attnlrp_gap=conserved(architecture, inputs, plain.target, ATTN_LRP)[0][0],
        operations=operations.met,
        tolerance=tolerance(architecture),
        layers=architecture.layers,
        readouts=tuple(readouts(architecture)),
    )
