"""Where relevance is lost on its way down: local conservation, operation by operation.

A rule conserves locally if the inputs of its operation get what its output had. What an operation
keeps, R(output) − Σ R(inputs), is measured where it happens, so the entries of all operations and
what reaches the words add up to the explained logit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lrputils.model.architectures import describe
from lrputils.model.attention import AttentionCall, with_all_heads
from lrputils.model.forwards import replaced
from lrputils.model.handles import Handle
from lrputils.model.readout import read
from lrputils.model.targets import Target
from lrputils.propagation.composites import installed
from lrputils.propagation.conservation import without_biases
from lrputils.propagation.refactored import BLOCK_RULES, Site

OPERATIONS = ("linear map", "norm", "activation", "product A·V", "softmax", "product Q·Kᵀ")
POSITIONS, ELSEWHERE, WORDS, LOGIT = "positions, types", "elsewhere", "reaches the words", "logit"


@torch.inference_mode(False)
def losses(
    model: Handle,
    inputs: Mapping[str, Any],
    method: str = "attnlrp",
    *,
    target: Target = None,
    biases: bool = True,
) -> dict[str, Tensor]:
    """Return what each kind of operation keeps of the relevance that reaches it.

    Works on a float64 copy on the CPU. The method is "attnlrp", "cp-lrp", or "gradient", which has
    no rules; without `biases` every bias is zero, and the class explained stays.

    Returns:
        `(batch,)` each, sums over the layers: for every name in `OPERATIONS` R(output) − Σ
        R(inputs); "positions, types", what those embeddings keep; "reaches the words"; "logit"; and
        "elsewhere", what the logit has more than all of these.

    Raises:
        TypeError: the model is not covered.
        ValueError: an unknown method.
    """
    if method not in BLOCK_RULES:
        raise ValueError(f"unknown method {method!r}; choose from {list(BLOCK_RULES)}")
    rule = BLOCK_RULES[method]
    chosen = read(describe(model), inputs, target=target).target.cpu()
    architecture = describe(without_biases(describe(model).model, zeroed=not biases))
    inputs = {k: v.cpu() for k, v in inputs.items() if isinstance(v, Tensor)}
    ledger = _Ledger()

    def attention(call: AttentionCall) -> tuple[Tensor, None]:
        value, key = (with_all_heads(x, call.query) for x in (call.value, call.key))
        at = Site(call.with_factors(call.query, key, value), rule, 0.0)
        scores = ledger.entered("product Q·Kᵀ", at.scores, call.query, key)
        weights = ledger.entered("softmax", lambda z: torch.softmax(at.masked(z), -1), scores)
        output = ledger.entered("product A·V", at.times, weights, value)
        return output.transpose(1, 2).contiguous(), None

    looks = {}
    for module in architecture.model.modules():
        linear = isinstance(module, (nn.Linear, Conv1D))
        name = "linear map" if linear else architecture.kind.operation(module)
        if name in OPERATIONS:
            looks[module] = ledger.around(name)
    plain = rule.composite.but(attention="gradient")
    with installed(architecture, plain.rule, attention), replaced(looks):
        reading = read(architecture, inputs, target=chosen)
    found = ledger.closed(reading.output.sum(), len(chosen))
    by_place, _ = reading.everywhere()
    words = by_place["word"].sum(1)
    found[POSITIONS] = by_place["sum"].sum(1) - words
    logit = reading.output.detach()
    return found | {WORDS: words, ELSEWHERE: logit - words - sum(found.values()), LOGIT: logit}


class _Ledger:
    """Keeps the inputs and outputs of operations, in the graph."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, list[Tensor], Tensor]] = []

    def entered(self, name: str, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call `function`; its inputs get gradients of their own, from this operation alone."""
        taken = [x.view_as(x) for x in inputs]
        output = function(*taken)
        if output.requires_grad:
            self.entries.append((name, [x for x in taken if x.requires_grad], output))
        return output

    def around(self, name: str) -> Callable:
        """A forward pass, for `replaced`, that enters a module's."""
        return lambda inner, x, *rest, **more: self.entered(name, inner, x)

    def closed(self, output: Tensor, batch: int) -> dict[str, Tensor]:
        """What each kind of operation keeps, once the relevance of `output` has come down."""
        tensors = [tensor for _, inputs, out in self.entries for tensor in (*inputs, out)]
        flowing = torch.autograd.grad(
            output, tensors, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        pairs = zip(tensors, flowing, strict=True)
        totals = iter([(x * g).reshape(batch, -1).sum(1).detach() for x, g in pairs])
        kept = {name: torch.zeros(batch, dtype=torch.float64) for name in OPERATIONS}
        for name, inputs, _ in self.entries:
            given = sum((next(totals) for _ in inputs), torch.zeros(batch, dtype=torch.float64))
            kept[name] = kept[name] + next(totals) - given
        return kept
