"""Shortcuts of a forward pass that change its results by rounding alone.

*The last layer, for the token that the head reads.* What a text's other tokens become there is
never read. What is left of the layer is one query, which sees every token's state h through K and
V: s·q·k_i = s·(W_Kᵀ·q)·h_i + a constant that the softmax takes out, and Σ_i A_i·v_i = W_V·Σ_i
A_i·h_i + b_V. So neither K nor V is computed.

*Linear layers by oneDNN, on a CPU.* It multiplies by blocks of a weight and applies the activation
while a block is in the cache. torch gives both to compiled models alone; called here are the
functions that such a model calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from transformers import activations
from transformers.pytorch_utils import Conv1D

from lrputils.model.architectures import Architecture
from lrputils.model.attention import AttentionCall, additive
from lrputils.model.forwards import Forward, replaced
from lrputils.model.operations import routed

# Activation → oneDNN's name for it, and which formula.
_FUSED = {
    nn.ReLU: ("relu", ""),
    nn.GELU: ("gelu", "none"),
    activations.GELUActivation: ("gelu", "none"),
    activations.NewGELUActivation: ("gelu", "tanh"),
    activations.GELUTanh: ("gelu", "tanh"),
}
_ALONE = "none", ""
# With fewer tokens, packing costs more than it saves.
_TOKENS = 1024


@contextmanager
def head_token_alone(architecture: Architecture, head: Tensor) -> Iterator[None]:
    """Inside the block, the last layer is computed for the column `head`, (rows,), of each row.

    The other columns' final states are wrong. A model with a rule installed is left as it is.
    """
    last, kind = architecture.blocks[-1], architecture.kind
    with ExitStack() as undo:
        free = kind.norm_after_attention is not None and "forward" not in vars(last)
        if free and kind.projections is not None:
            layer = _Attention(architecture, head)
            undo.enter_context(replaced(layer.forwards))
            undo.enter_context(routed(architecture, layer))
        if free:
            norm = last.get_submodule(kind.norm_after_attention)
            undo.enter_context(replaced({norm: lambda inner, x: inner(_column(x, head))}))
        yield


def _column(states: Tensor, head: Tensor) -> Tensor:
    """Of each row `(rows, tokens, size)` one token, `(rows, 1, size)`."""
    return states[torch.arange(len(head), device=states.device), head][:, None]


class _Attention:
    """An attention function, and forward passes of the last layer's projections around it.

    Queries, keys and values of the tokens that are not read are zeros without memory.
    """

    def __init__(self, architecture: Architecture, head: Tensor):
        last, self.head, self.layers = architecture.blocks[-1], head, architecture.layers
        query, self.key, self.value, output = (
            last.get_submodule(path) for path in architecture.kind.projections
        )
        self.forwards: dict = {query: self._query, output: self._output}
        self.forwards |= dict.fromkeys((self.key, self.value), self._unused)

    def _query(self, inner: Forward, states: Tensor) -> Tensor:
        self.states = states
        return inner(_column(states, self.head)).expand_as(states)

    def _unused(self, inner: Forward, states: Tensor) -> Tensor:
        return states.new_zeros(()).expand_as(states)

    def _output(self, inner: Forward, states: Tensor) -> Tensor:
        return inner(states[:, :1]).expand_as(states)

    def __call__(self, call: AttentionCall) -> tuple[Tensor, None] | None:
        """The last layer's attention, of the head's token alone; the other layers' is left."""
        if call.layer < self.layers - 1:
            return None
        heads, tokens, size = call.query.shape[1:]
        by_head = (heads, size, -1)
        query = call.query[:, :, 0] * call.scaling
        seen = torch.einsum("bhe,hed->bhd", query, self.key.weight.view(by_head))
        weights = self._weights(seen @ self.states.transpose(1, 2), call.mask)
        mixed = weights @ self.states
        output = torch.einsum("bhd,hed->bhe", mixed, self.value.weight.view(by_head))
        if self.value.bias is not None:
            output = output + weights.sum(-1, keepdim=True) * self.value.bias.view(heads, size)
        return output[:, None].expand(-1, tokens, -1, -1), None

    def _weights(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """A of the head's token, (rows, heads, tokens); 0 where it may look nowhere, as fused."""
        if mask is None:
            return scores.softmax(-1)
        row = mask.expand(len(scores), -1, scores.shape[-1], -1)
        row = row[torch.arange(len(scores), device=row.device), :, self.head]
        weights = (scores + additive(row, scores.dtype)).softmax(-1)
        return weights * row.any(-1, keepdim=True) if row.dtype == torch.bool else weights


@contextmanager
def fast_linear(architecture: Architecture, tokens: int) -> Iterator[None]:
    """Inside the block, in this thread, the layers of the model's blocks use packed weights.

    Where that cannot be (another device or dtype, a torch without oneDNN), or `tokens`, the number
    that will pass, is too small, nothing changes.
    """
    device = next(architecture.model.parameters()).device
    onednn = (
        device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    with replaced(_Linear(architecture).forwards if onednn and tokens >= _TOKENS else {}):
        yield


class _Linear:
    """Forward passes of linear layers and of the activations behind them.

    The first time that an activation is given what a linear layer has just returned, the pair is
    noted; from then on the layer returns the activated value.
    """

    def __init__(self, architecture: Architecture):
        self.forwards: dict[nn.Module, Forward] = {}
        self.pairs: dict[nn.Module, tuple[str, str]] = {}
        self.last: tuple[nn.Module, Tensor] | None = None
        for module in dict.fromkeys(m for block in architecture.blocks for m in block.modules()):
            if type(module) in _FUSED:
                self.forwards[module] = partial(self._activate, _FUSED[type(module)])
            elif type(module) in (nn.Linear, Conv1D) and module.weight.dtype == torch.float32:
                weight = module.weight.T if isinstance(module, Conv1D) else module.weight
                packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
                self.forwards[module] = partial(self._multiply, module, packed)

    def _multiply(self, module: nn.Module, weight: Tensor, inner: Forward, x: Tensor) -> Tensor:
        pair = self.pairs.get(module, _ALONE)
        y = torch.ops.mkldnn._linear_pointwise(x, weight, module.bias, pair[0], [], pair[1])
        self.last = module, y
        return y

    def _activate(self, pair: tuple[str, str], inner: Forward, x: Tensor) -> Tensor:
        if self.last is None or self.last[1] is not x:
            return inner(x)
        done = self.last[0] in self.pairs
        self.pairs[self.last[0]] = pair
        return x if done else inner(x)
