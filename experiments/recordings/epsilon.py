"""AttnLRP and CP-LRP with the ε-rule at ε > 0, in post-norm encoders as BERT and MPNet.

Every network of the book runs at ε = 0. Here the ε of the published equations stays. Where an
operation's relevance is divided by its output z, the divisor is z + ε·sign(z), so that what flows
back shrinks, there and only there, by

    z / (z + ε sign z) = |z| / (|z| + ε).

| operation | z | You et al. |
|---|---|---|
| linear layer, norm with its deviation held | its output, bias included | Eq. 1 |
| residual sum, embeddings' sum | the sum | Eq. 1, as a linear map of its summands |
| A·V, halved; with A constant | 2·O; O | Eqs. 3a, 3b; Eq. 1 |
| s·Q·Kᵀ, halved | 2·Z | Eqs. 4a, 4b |
| Z plus a position's bias (MPNet) | the sum | Eq. 1 |
| softmax, activation | no divisor | Eq. 5, identity rule |

`tests/experiments/test_epsilon.py` holds the maps to the explicit rules of
`tests/reference.py`. It measures; what records rows is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from experiments.by_text import in_batches
from lrputils import stats
from lrputils.model.architectures import Handle
from lrputils.model.attention import AttentionCall, additive
from lrputils.model.classifier import Classifier
from lrputils.model.forwards import Forward, replaced
from lrputils.model.inputs import Inputs
from lrputils.model.readout import Target, read
from lrputils.propagation.composites import ATTN_LRP, CP_LRP, Composite, covered, installed
from lrputils.propagation.rules import Shares, scaled
from lrputils.removal.leave_one_out import leave_one_out

EPSILONS = (0.0, 1e-9, 1e-6, 1e-4, 1e-2)
LRP = {"attnlrp": ATTN_LRP, "cp-lrp": CP_LRP}


@in_batches("id")
def measure(classifier: Classifier, inputs: Inputs, target: Tensor) -> Iterator[dict[str, Any]]:
    """Return each text's agreement with leave-one-out at every ε; longer texts are cut.

    Exact leave-one-out by the attention mask, of the class predicted on the whole text.

    Returns:
        one row a text, method ("attnlrp", "cp-lrp"), read-out and ε: `id`, `method`, `readout`,
        `epsilon`; Pearson's `r` with leave-one-out over all tokens, `r_content` without special
        tokens, `r_zero` with the same method's map at ε = 0 over all tokens.

    Raises:
        ValueError: see `_epsilon_lrp`.
    """
    loo = leave_one_out(classifier.model, inputs, target=target, progress=False)
    valid, content = inputs.valid_mask.cpu(), inputs.content_mask.cpu()
    for method, composite in LRP.items():
        how = {"target": target, "composite": composite}
        at = {eps: _epsilon_lrp(classifier, inputs, epsilon=eps, **how) for eps in EPSILONS}
        for eps, maps in at.items():
            for readout, scores in maps.items():
                yield {
                    "method": method,
                    "readout": readout,
                    "epsilon": eps,
                    "r": stats.pearson(scores, loo, valid),
                    "r_content": stats.pearson(scores, loo, content),
                    "r_zero": stats.pearson(scores, at[0.0][readout], valid),
                }


def _epsilon_lrp(
    model: Handle,
    inputs: Mapping[str, Any],
    *,
    target: Target = None,
    composite: Composite,
    epsilon: float,
) -> dict[str, Tensor]:
    """Relevance `(batch, tokens)` under `composite` and the ε-rule, at every read-out by its name.

    One forward pass, which is the plain model's, and one backward pass. ε has the unit of what it
    is added to: an activation's.

    Raises:
        ValueError: a model whose residual sums are not what its norms take.
    """
    architecture = covered(model)
    if architecture.embedding_norm is None:
        raise ValueError(
            f"{type(architecture.model).__name__} has its norms before its sums: only encoders "
            "with a norm behind every residual sum are covered, as BERT and MPNet"
        )

    def linear(inner: Forward, x: Tensor) -> Tensor:
        return damped(inner(x), epsilon)

    layers = [part for part in architecture.model.modules() if isinstance(part, nn.Linear)]
    with (
        installed(architecture, rules(composite, epsilon)),
        replaced(dict.fromkeys(layers, linear)),
    ):
        reading = read(architecture, inputs, target=target)
        sites, values = zip(*reading.places.values(), strict=True)
        flowing = list(torch.autograd.grad(reading.output.sum(), sites))
    # From the embeddings' sum to the words is one more operation, whose output is the sum.
    places = list(reading.places)
    word, total = places.index("word"), places.index("sum")
    flowing[word] = flowing[word] * kept(values[total], epsilon)
    return dict(zip(places, map(reading.relevance, flowing, values), strict=True))


def rules(composite: Composite, epsilon: float) -> Callable[[str, int | None], Callable]:
    """The rulebook of `composite` with ε at every output that a rule divides by."""

    def norm_rule(rule: Callable, layer: int | None) -> Callable:
        def norm(input: Tensor, normalized_shape: Any, *given: Any, **more: Any) -> Tensor:
            # In a layer x is a residual sum. At the embeddings (layer None) it is a read-out.
            x = input if layer is None else damped(input, epsilon)
            return damped(rule(x, normalized_shape, *given, **more), epsilon)

        return norm

    def rulebook(operation: str, layer: int | None) -> Callable:
        rule = composite.rule(operation, layer)
        if operation == "norm":
            return norm_rule(rule, layer)
        if operation == "attention":
            # A halved product divides by 2·z + ε sign z: half, and then as if ε were half.
            eps = epsilon / 2 if rule.shares[0] else epsilon
            return Shares(*rule.shares, inside=lambda call, kernel: attention(call, eps, epsilon))
        return rule

    return rulebook


def attention(call: AttentionCall, products: float, sums: float) -> Tensor:
    """A·V with A = softmax(s·Q·Kᵀ + bias), `(batch, tokens, heads, size)`, both products damped.

    `products` is the ε of the two products, `sums` that of adding a position's bias to Z, where a
    model has one; a boolean mask adds nothing.
    """
    scores = damped(call.scores(), products)
    if call.mask is not None:
        total = scores + additive(call.mask, scores.dtype)
        scores = total if call.mask.dtype == torch.bool else damped(total, sums)
    weights = torch.softmax(scores, -1).to(call.query.dtype)
    return damped(call.combined(weights), products)


def damped(z: Tensor, epsilon: float) -> Tensor:
    """Return z, and let the share `kept` of its gradient pass."""
    return scaled(z, kept(z.detach(), epsilon)) if epsilon else z


def kept(z: Tensor, epsilon: float) -> Tensor | float:
    """|z| / (|z| + ε), and 1 at ε = 0."""
    return z.abs() / (z.abs() + epsilon) if epsilon else 1.0
