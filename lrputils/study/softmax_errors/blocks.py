"""Each layer's attention block decomposed: the value and the softmax path's relevance of a token.

In one layer and head let A = softmax(Z) be the attention of query j to the keys i that it sees
(n_j of them), V_i the values, O_j = Σ_i A_ji V_i the output, and g_j what flows back to O_j under
the composite's rules. The value path hands token i the relevance

    Σ_j A_ji V_i·g_j  =    Σ_j O_j·g_j / n_j              uniform
                         + Σ_j (A_ji − 1/n_j) O_j·g_j     attended
                         + Σ_j A_ji (V_i − O_j)·g_j       contrast

Structural bias: uniform + attended = Σ_j A_ji O_j·g_j is what a token would get if every value
were the same, when its removal would change nothing. Linearisation: without key i the output
changes by (O_j − O_j without i)·g_j = A_ji / (1 − A_ji) (V_i − O_j)·g_j, the removal; its Taylor
estimate is the contrast, and what AttnLRP sends through the softmax is Z_ji times the contrast.
The composite's own split of the block's relevance is not used: all is computed from A, Z, V, O
and g. Sums run over heads as well; the effects of a removal leave out the removed token's own query
(see `lrputils.removal.mask_gradient`). `measures` compares the decompositions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall, Recorder
from lrputils.model.handles import Handle
from lrputils.model.readout import Reading, Target, read
from lrputils.propagation import rules
from lrputils.propagation.composites import ATTN_LRP, Composite, check_composite, installed
from lrputils.removal.mask_gradient import (
    exact_block,
    first_order,
    parts,
    weights_and_products,
    without_own_row,
)


@dataclass(frozen=True)
class SoftmaxMaps:
    """Each token's score in each layer's attention block, by each account; see the module.

    All are (layers, batch, tokens), 0 at padding, but for `entropy` (layers, batch) and `valid`
    (batch, tokens).

    Attributes:
        uniform: the value path's part that every key of a query gets alike.
        attended: the part that follows the attention weight, whatever the value.
        contrast: the part that follows the value's difference from the output.
        softmax: Σ_j Z_ji A_ji (V_i − O_j)·g_j, what the softmax path says of key i.
        attnlrp: AttnLRP's mixture: half of the value path, a quarter of the softmax path at the
            keys, and the other quarter at the queries.
        taylor: the first-order estimate of `removal`: `contrast` without the token's own query.
        removal: the exact change of the block's output, on g, when the token goes.
        entropy: mean over heads and queries of the entropy of A_j· divided by log n_j; NaN where
            no query sees two keys.
        valid: true at tokens, false at padding.
    """

    uniform: Tensor
    attended: Tensor
    contrast: Tensor
    softmax: Tensor
    attnlrp: Tensor
    taylor: Tensor
    removal: Tensor
    entropy: Tensor
    valid: Tensor

    @property
    def value(self) -> Tensor:
        """Σ_j A_ji V_i·g_j, all that CP-LRP propagates: uniform + attended + contrast."""
        return self.structural + self.contrast

    @property
    def structural(self) -> Tensor:
        """Σ_j A_ji O_j·g_j: uniform + attended."""
        return self.uniform + self.attended


@torch.inference_mode(False)
def softmax_maps(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    composite: Composite = ATTN_LRP,
) -> SoftmaxMaps:
    """Take every layer's attention apart, in one forward and one backward pass.

    Args:
        model: a covered model in evaluation mode, or what holds one (see `model_of`).
        inputs: a batch of encoded texts, or `pixel_values`.
        target: the class explained; by default the one predicted on the whole input.
        composite: the rules by which g flows down to the blocks' outputs.

    Returns:
        Tensors on the model's device; float32, for a float64 model float64.

    Raises:
        TypeError: the model is not covered, or `composite` is none.
        ValueError: what `check_composite` and `read` refuse.
    """
    architecture = describe(model)
    check_composite(composite, architecture)
    with installed(architecture, composite.rule) as route:
        route.function = blocks = Recorder(route.function)
        reading = read(architecture, inputs, target=target)
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    with torch.no_grad():
        pairs = zip(blocks.calls, gradients, strict=True)
        layers = [_layer(call, gradient, reading) for call, gradient in pairs]
    stacked = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    return SoftmaxMaps(**stacked, valid=reading.valid)


def _layer(call: AttentionCall, gradient: Tensor, reading: Reading) -> dict[str, Tensor]:
    """One layer's maps (batch, tokens) and entropy (batch,), part of the batch at a time."""
    found = [
        _block(rows, gradient[some], reading.valid[some], reading.head[some])
        for some, rows in parts(call)
    ]
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def _block(
    call: AttentionCall, gradient: Tensor, valid: Tensor, readout: Tensor
) -> dict[str, Tensor]:
    weights, products = weights_and_products(call, gradient)
    of_query, of_key, of_value = rules.ATTNLRP_ATTENTION.shares
    seen = call.seen() & valid[:, None, :, None]
    passed = (weights * products).sum(-1, keepdim=True)  # O_j·g_j
    spread = torch.where(seen, passed / seen.sum(-1, keepdim=True).clamp(min=1), 0.0)
    contrast = first_order(weights, products)
    softmax = call.scores().to(weights.dtype) * contrast
    value = (weights * products).sum((1, 2))
    scores = {
        "uniform": spread.sum((1, 2)),
        "attended": (weights * passed - spread).sum((1, 2)),
        "contrast": contrast.sum((1, 2)),
        "softmax": softmax.sum((1, 2)),
        "attnlrp": of_value * value + of_key * softmax.sum((1, 2)) + of_query * softmax.sum((1, 3)),
        "taylor": without_own_row(contrast.sum(1), readout),
        "removal": without_own_row(exact_block(weights, products).sum(1), readout),
    }
    scores = {name: torch.where(valid, rows, 0.0) for name, rows in scores.items()}
    return {**scores, "entropy": _entropy(weights, seen)}


def _entropy(weights: Tensor, seen: Tensor) -> Tensor:
    """Mean normalised entropy (batch,) over heads and the queries that see two keys or more."""
    keys = seen.sum(-1)
    usable = (keys > 1).expand(weights.shape[:-1])
    share = torch.special.entr(weights).sum(-1) / keys.clamp(min=2).log()
    return torch.where(usable, share, torch.nan).flatten(1).nanmean(1)
