"""Where the two suspected errors of LRP at the softmax sit, layer by layer, text by text.

The paper suspects a structural bias and a linearisation error and measures neither. Here each
layer's attention block is taken apart: what a token's removal does to it, and what rules say.

In one layer and head let A = softmax(Z) be the attention of query j to the keys i that it sees
(n_j of them), V_i the values, O_j = Σ_i A_ji V_i the output, and g_j what flows back to O_j under
the composite's rules. Without key i the output changes by (O_j − O_j without i)·g_j = A_ji / (1 −
A_ji) (V_i − O_j)·g_j, the removal; its Taylor estimate is the contrast A_ji (V_i − O_j)·g_j. The
value path and the softmax path hand to key i

    Σ_j A_ji V_i·g_j  =  Σ_j A_ji O_j·g_j + Σ_j A_ji (V_i − O_j)·g_j,    structural + contrast,
    Σ_j Z_ji A_ji (V_i − O_j)·g_j.

A and V_i − O_j follow from the function that the network computes; the zero of V and that of each
row of Z do not (see `gauge`). So these two paths have no size of their own. To show what a choice
does, both are measured from the mean over the keys that a query sees; and from the attended mean,
Σ_i A_ji of it, where the structural part is nothing and the value path is the contrast.

Effects leave out the removed token's own query, except at the token that the head reads (see
`lrputils.removal.mask_gradient`). Sums run over heads. `measure` compares the accounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.by_text import in_batches
from lrputils import stats
from lrputils.model.architectures import Handle
from lrputils.model.attention import AttentionCall, Recorder
from lrputils.model.classifier import Classifier
from lrputils.model.inputs import Inputs
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import (
    ATTN_LRP,
    Composite,
    covered,
    installed,
)
from lrputils.removal.mask_gradient import (
    exact_block,
    first_order,
    in_parts,
    without_own_row,
)

# What `measure` measures, in words.
MEASURES = {
    "entropy": "attention entropy, as a share of the largest possible",
    "linearisation": "relative error of the Taylor estimate of removals",
    "r_taylor": "r with removal: the Taylor estimate",
    "structural": "share of the value path that ignores the token's value, V from its mean",
    "r_value": "r with removal: the value path, V from its mean",
    "r_softmax": "r with removal: the softmax path, Z from its mean",
    "r_softmax_attended": "r with removal: the softmax path, Z from its attended mean",
}


@in_batches("id")
def measure(
    classifier: Classifier, inputs: Inputs, target: Tensor, *, difference: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure a classifier's attention blocks on texts; longer texts are cut.

    Args:
        classifier: a covered one.
        inputs: of the texts.
        target: the predicted classes, whose logits are explained.
        difference: of two classes, the difference of their logits is.

    Returns:
        A row a text and layer: `id` of the text, `layer` (from 1), and the columns of `MEASURES`:
        `entropy`; `linearisation`, ``|contrast − removal| / |removal|`` of absolute values summed
        over tokens; `structural`, ``|structural| / (|structural| + |contrast|)``; and Pearson's r
        over the text's tokens between `removal` and each account of it. NaN where a quotient or
        correlation is undefined. All are the same in every parameterisation of one function, but
        those after `r_taylor` rest on a choice of zero (see `_softmax_maps`).
    """
    chosen = torch.stack([target, ~(1 - target)], 1) if difference else target
    found = _measures(_softmax_maps(classifier.model, inputs, target=chosen))
    for layer in range(classifier.architecture.layers):
        yield {"layer": layer + 1} | {name: values[layer] for name, values in found.items()}


@torch.inference_mode(False)
def _softmax_maps(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    composite: Composite = ATTN_LRP,
) -> dict[str, Tensor]:
    """Take every layer's attention apart, in one forward and one backward pass.

    By the rules of `composite` g flows from the target's logit down to the blocks' outputs.

    Returns:
        each token's score in each layer's block by each account, (layers, batch, tokens), 0 at
        padding: `contrast`, Σ_j A_ji (V_i − O_j)·g_j, the Taylor estimate of `removal`;
        `structural`, Σ_j A_ji O_j·g_j, V measured from its mean; `softmax`, Σ_j Z_ji A_ji (V_i −
        O_j)·g_j, each row of Z measured from its mean, `softmax_attended` from its attended mean;
        `removal`, the exact change of the block's output, on g, when the token goes; `value`, all
        that CP-LRP propagates, `structural` + `contrast`. `entropy` (layers, batch): mean over
        heads and queries of the entropy of A_j· divided by log n_j, NaN where no query sees two
        keys. `valid` (batch, tokens): true at tokens, false at padding.

    Raises:
        TypeError: the model is not covered, or `composite` is none.
        ValueError: what `covered` and `read` refuse.
    """
    architecture = covered(model, composite)
    with installed(architecture, composite.rule) as route:
        route.function = blocks = Recorder(route.function)
        reading = read(architecture, inputs, target=target)
    route.check_calls()
    gradients = torch.autograd.grad(reading.output.sum(), blocks.outputs)
    layers: list[dict[str, Tensor]] = []
    with torch.no_grad():
        for call, gradient in zip(blocks.calls, gradients, strict=True):
            parts = [
                _block(*part, reading.valid[some], reading.head[some])
                for some, *part in in_parts(call, gradient)
            ]
            layers.append({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    stacked = {name: torch.stack([layer[name] for layer in layers]) for name in layers[0]}
    stacked["value"] = stacked["structural"] + stacked["contrast"]
    return stacked | {"valid": reading.valid}


def _block(
    call: AttentionCall, weights: Tensor, products: Tensor, valid: Tensor, readout: Tensor
) -> dict[str, Tensor]:
    """Maps (batch, tokens) and entropy (batch,) of one layer, for a part of the batch."""
    seen = call.seen() & valid[:, None, :, None]
    scores = call.scores().to(weights.dtype)
    products, scores = (x - _mean(x, seen) for x in (products, scores))
    contrast = first_order(weights, products)
    attended = (weights * scores).sum(-1, keepdim=True)
    effects = {
        "contrast": contrast,
        "structural": weights * (weights * products).sum(-1, keepdim=True),
        "softmax": scores * contrast,
        "softmax_attended": (scores - attended) * contrast,
        "removal": exact_block(weights, products),
    }
    maps = {name: without_own_row(effect.sum(1), readout) for name, effect in effects.items()}
    maps = {name: torch.where(valid, rows, 0.0) for name, rows in maps.items()}
    return {**maps, "entropy": _entropy(weights, seen)}


def _mean(rows: Tensor, seen: Tensor) -> Tensor:
    """Mean over the keys that each query sees, `(…, queries, 1)`."""
    total = torch.where(seen, rows, 0.0).sum(-1, keepdim=True)
    return total / seen.sum(-1, keepdim=True).clamp(min=1)


def _entropy(weights: Tensor, seen: Tensor) -> Tensor:
    """Mean normalised entropy (batch,) over heads and the queries that see two keys or more."""
    keys = seen.sum(-1)
    usable = (keys > 1).expand(weights.shape[:-1])
    share = torch.special.entr(weights).sum(-1) / keys.clamp(min=2).log()
    return torch.where(usable, share, torch.nan).flatten(1).nanmean(1)


def _measures(maps: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The numbers of `MEASURES`, each float64 (layers, batch); see `measure`."""
    error = maps["contrast"] - maps["removal"]
    structural, contrast, removal, error = (
        scores.abs().double().sum(-1)
        for scores in (maps["structural"], maps["contrast"], maps["removal"], error)
    )
    found = {
        "entropy": maps["entropy"].double(),
        "linearisation": error / removal,
        "structural": structural / (structural + contrast),
    }
    found = {name: x.where(x.isfinite(), torch.nan).cpu().numpy() for name, x in found.items()}
    accounts = {
        "r_taylor": maps["contrast"],
        "r_value": maps["value"],
        "r_softmax": maps["softmax"],
        "r_softmax_attended": maps["softmax_attended"],
    }
    for name, account in accounts.items():
        pairs = zip(account, maps["removal"], strict=True)
        found[name] = np.stack([stats.pearson(*pair, where=maps["valid"]) for pair in pairs])
    return {name: found[name] for name in MEASURES}
